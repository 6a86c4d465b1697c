// Any bytes as a batch: an error or samples of possible sizes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "formats/job/spec_loader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> warnings;
  const auto batch =
      pipeloom::formats::ParseBatch(text, "fuzz.jsonl", &warnings);
  if (!batch.ok()) return 0;
  PIPELOOM_CHECK(!batch->samples.empty());
  PIPELOOM_CHECK(warnings.size() <= 3);
  for (const pipeloom::SampleMetadata& sample : batch->samples) {
    PIPELOOM_CHECK(sample.text_tokens >= 0);
    for (const pipeloom::ImageSize& image : sample.images) {
      PIPELOOM_CHECK(image.width > 0 && image.height > 0);
    }
    for (const pipeloom::VideoClip& clip : sample.videos) {
      PIPELOOM_CHECK(clip.frames >= 0 && clip.seconds >= 0);
    }
    for (const double seconds : sample.audio_seconds) {
      PIPELOOM_CHECK(seconds >= 0);
    }
  }
  return 0;
}
