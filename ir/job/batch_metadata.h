// Metadata of a batch, known before its data are loaded: sizes and durations.
#ifndef PIPELOOM_IR_JOB_BATCH_METADATA_H_
#define PIPELOOM_IR_JOB_BATCH_METADATA_H_

#include <cstdint>
#include <vector>

#include "ir/ids.h"

namespace pipeloom {

// The size of an image.
struct ImageSize {
  int32_t width = 0;   // px
  int32_t height = 0;  // px
  bool operator==(const ImageSize&) const = default;
};

// A video clip of a sample. 0 stands for an unknown value, which is common in
// public metadata.
struct VideoClip {
  int32_t frames = 0;
  int32_t width = 0;   // px
  int32_t height = 0;  // px
  double seconds = 0;
  bool operator==(const VideoClip&) const = default;
};

// The contents of one sample.
struct SampleMetadata {
  int64_t text_tokens = 0;
  std::vector<ImageSize> images{};
  std::vector<VideoClip> videos{};
  std::vector<double> audio_seconds{};
  bool operator==(const SampleMetadata&) const = default;
};

// The samples of a batch, in the order of the data loader.
struct BatchMetadata {
  IdVector<SampleId, SampleMetadata> samples{};
  bool operator==(const BatchMetadata&) const = default;
};

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_BATCH_METADATA_H_
