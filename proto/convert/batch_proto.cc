#include "proto/convert/batch_proto.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::convert {
namespace {

// Limits of the batch files (formats/job/batch_reader.cc); a larger value is a
// mistake.
constexpr int64_t kMaxTextTokens = 100'000'000;
constexpr int64_t kMaxSide = 100'000;  // px
constexpr int64_t kMaxFrames = 100'000'000;
constexpr double kMaxSeconds = 1e7;

// The place of a number in the message; made into text only for an error.
struct Place {
  int sample = 0;
  // Such as "images"; empty: a field of the sample itself.
  const char* list = "";
  int index = 0;
};

std::string NameOf(const Place& place, const char* field) {
  std::string name = absl::StrFormat("samples[%d]", place.sample);
  if (*place.list != 0) {
    absl::StrAppendFormat(&name, ".%s[%d]", place.list, place.index);
  }
  if (*field != 0) absl::StrAppendFormat(&name, ".%s", field);
  return name;
}

absl::Status CheckWhole(const Place& place, const char* field, int64_t value,
                        int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; it must be in [%d, %d]", NameOf(place, field),
                      value, low, high));
}

absl::Status CheckSeconds(const Place& place, const char* field, double value) {
  if (value >= 0 && value <= kMaxSeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g; it must be in [0, %g]", NameOf(place, field),
                      value, kMaxSeconds));
}

absl::StatusOr<SampleMetadata> SampleFromProto(const v1::SampleMetadata& proto,
                                               int sample) {
  PIPELOOM_RETURN_IF_ERROR(CheckWhole({.sample = sample}, "text_tokens",
                                      proto.text_tokens(), 0, kMaxTextTokens));
  SampleMetadata result;
  result.text_tokens = proto.text_tokens();
  for (int i = 0; i < proto.images_size(); ++i) {
    const v1::ImageSize& image = proto.images(i);
    const Place place{sample, "images", i};
    PIPELOOM_RETURN_IF_ERROR(
        CheckWhole(place, "width_px", image.width_px(), 1, kMaxSide));
    PIPELOOM_RETURN_IF_ERROR(
        CheckWhole(place, "height_px", image.height_px(), 1, kMaxSide));
    result.images.push_back(
        {.width = image.width_px(), .height = image.height_px()});
  }
  for (int i = 0; i < proto.videos_size(); ++i) {
    const v1::VideoClip& clip = proto.videos(i);
    const Place place{sample, "videos", i};
    PIPELOOM_RETURN_IF_ERROR(
        CheckWhole(place, "frames", clip.frames(), 0, kMaxFrames));
    PIPELOOM_RETURN_IF_ERROR(
        CheckWhole(place, "width_px", clip.width_px(), 0, kMaxSide));
    PIPELOOM_RETURN_IF_ERROR(
        CheckWhole(place, "height_px", clip.height_px(), 0, kMaxSide));
    PIPELOOM_RETURN_IF_ERROR(CheckSeconds(place, "seconds", clip.seconds()));
    result.videos.push_back({.frames = clip.frames(),
                             .width = clip.width_px(),
                             .height = clip.height_px(),
                             .seconds = clip.seconds()});
  }
  for (int i = 0; i < proto.audio_seconds_size(); ++i) {
    PIPELOOM_RETURN_IF_ERROR(
        CheckSeconds({sample, "audio_seconds", i}, "", proto.audio_seconds(i)));
    result.audio_seconds.push_back(proto.audio_seconds(i));
  }
  return result;
}

}  // namespace

v1::SampleMetadata ToProto(const SampleMetadata& sample) {
  v1::SampleMetadata proto;
  proto.set_text_tokens(sample.text_tokens);
  for (const ImageSize& image : sample.images) {
    v1::ImageSize& i = *proto.add_images();
    i.set_width_px(image.width);
    i.set_height_px(image.height);
  }
  for (const VideoClip& clip : sample.videos) {
    v1::VideoClip& v = *proto.add_videos();
    v.set_frames(clip.frames);
    v.set_width_px(clip.width);
    v.set_height_px(clip.height);
    v.set_seconds(clip.seconds);
  }
  for (const double seconds : sample.audio_seconds) {
    proto.add_audio_seconds(seconds);
  }
  return proto;
}

v1::BatchMetadata ToProto(const BatchMetadata& batch) {
  v1::BatchMetadata proto;
  for (const SampleMetadata& sample : batch.samples) {
    *proto.add_samples() = ToProto(sample);
  }
  return proto;
}

absl::StatusOr<BatchMetadata> FromProto(const v1::BatchMetadata& proto,
                                        const BatchLimits& limits) {
  if (proto.samples_size() > limits.samples) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("samples has %d entries; at most %d are taken",
                        proto.samples_size(), limits.samples));
  }
  int64_t items = 0;
  for (const v1::SampleMetadata& sample : proto.samples()) {
    items += sample.images_size() + sample.videos_size() +
             sample.audio_seconds_size();
  }
  if (items > limits.items) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "samples has %d images, clips and recordings; at most %d are taken",
        items, limits.items));
  }
  BatchMetadata batch;
  batch.samples.reserve(proto.samples_size());
  for (int i = 0; i < proto.samples_size(); ++i) {
    PIPELOOM_ASSIGN_OR_RETURN(SampleMetadata sample,
                              SampleFromProto(proto.samples(i), i));
    batch.samples.push_back(std::move(sample));
  }
  return batch;
}

}  // namespace pipeloom::convert
