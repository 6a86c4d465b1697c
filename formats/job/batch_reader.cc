#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

// Larger sizes are mistakes.
constexpr int64_t kMaxTextTokens = 100'000'000;
constexpr int64_t kMaxSide = 100'000;        // px
constexpr int64_t kMaxFrames = 100'000'000;  // 38 days at 30 a second.
constexpr double kMaxSeconds = 1e7;
constexpr int32_t kMaxSamples = 100'000'000;

int32_t Narrow(int64_t value) { return static_cast<int32_t>(value); }

// Reads a side under its name, or under that of the protobuf and of Python,
// which has the unit. REQUIRES: the names outlive the reader.
void ReadSide(ObjectReader& reader, absl::string_view name,
              absl::string_view with_unit, int64_t* side) {
  const bool has_unit = reader.Has(with_unit);
  if (has_unit && reader.Has(name)) {
    reader.Refuse(with_unit,
                  absl::StrFormat("left out, as \"%s\" is given", name));
    return;
  }
  reader.Read(has_unit ? with_unit : name, int64_t{0}, kMaxSide, side);
}

void ReadSample(ObjectReader& reader, SampleMetadata* sample) {
  reader.Read("text_tokens", int64_t{0}, kMaxTextTokens, &sample->text_tokens);
  reader.ForEach("images", [&](const JsonValue& item, const std::string& path) {
    if (item.kind != JsonValue::Kind::kList || item.items.size() != 2) {
      reader.Refuse(item, path, "[width, height] in pixels");
      return;
    }
    int64_t size[2] = {0, 0};
    for (size_t i = 0; i < 2; ++i) {
      reader.ParseInteger(item.items[i], absl::StrCat(path, "[", i, "]"), 1,
                          kMaxSide, &size[i]);
    }
    sample->images.push_back(
        {.width = Narrow(size[0]), .height = Narrow(size[1])});
  });
  reader.ReadObjects("videos", [&](ObjectReader& r) {
    int64_t frames = 0;
    int64_t width = 0;
    int64_t height = 0;
    VideoClip clip;
    r.Read("frames", int64_t{0}, kMaxFrames, &frames);
    ReadSide(r, "width", "width_px", &width);
    ReadSide(r, "height", "height_px", &height);
    r.Read("seconds", 0.0, kMaxSeconds, &clip.seconds);
    clip.frames = Narrow(frames);
    clip.width = Narrow(width);
    clip.height = Narrow(height);
    sample->videos.push_back(clip);
  });
  reader.ForEach("audio_seconds",
                 [&](const JsonValue& item, const std::string& path) {
                   double seconds = 0;
                   reader.ParseNumber(item, path, 0.0, kMaxSeconds, &seconds);
                   sample->audio_seconds.push_back(seconds);
                 });
}

}  // namespace

absl::StatusOr<BatchMetadata> ParseBatch(absl::string_view text,
                                         const std::string& file_name,
                                         std::vector<std::string>* warnings) {
  BatchMetadata batch;
  int64_t videos = 0;
  int64_t without_size = 0;
  int64_t without_length = 0;
  std::string extra;  // The first "FILE:LINE: field "x"".
  int64_t num_extra = 0;
  int32_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const absl::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    if (batch.samples.size() >= kMaxSamples) {
      return ErrorAt(
          file_name, line_number,
          absl::StrFormat("a batch has at most %d samples", kMaxSamples));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json,
                              ParseJson(line, file_name, line_number));
    ObjectReader reader(file_name, json, "");
    SampleMetadata sample;
    ReadSample(reader, &sample);
    int32_t extra_line = 0;
    int32_t count = 0;
    if (const std::string* name = reader.FirstUnknown(&extra_line, &count)) {
      if (extra.empty()) {
        JsonValue shown;
        shown.kind = JsonValue::Kind::kString;
        shown.string = *name;
        extra = absl::StrCat(file_name, ":", extra_line, ": field ",
                             Describe(shown));
      }
      num_extra += count;
    }
    PIPELOOM_RETURN_IF_ERROR(reader.status());
    for (const VideoClip& clip : sample.videos) {
      ++videos;
      without_size += clip.width == 0 || clip.height == 0 ? 1 : 0;
      without_length += clip.frames == 0 && clip.seconds <= 0 ? 1 : 0;
    }
    batch.samples.push_back(std::move(sample));
  }
  if (batch.samples.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name,
                     ": holds no samples; it must have at least one line like "
                     "{\"text_tokens\": 312, \"images\": [[1024, 768]]}"));
  }
  if (num_extra > 0 && warnings != nullptr) {
    warnings->push_back(
        absl::StrFormat("%s is not used, the first of %d fields that are not",
                        extra, num_extra));
  }
  if (warnings == nullptr) return batch;
  if (without_size > 0) {
    warnings->push_back(absl::StrFormat(
        "%s: %d of %d videos have no width and height, and count by the "
        "default of the model's token rule: give both in pixels",
        file_name, without_size, videos));
  }
  if (without_length > 0) {
    warnings->push_back(absl::StrFormat(
        "%s: %d of %d videos have neither frames nor seconds, and count as the "
        "shortest clip: give one of them",
        file_name, without_length, videos));
  }
  return batch;
}

}  // namespace pipeloom::formats
