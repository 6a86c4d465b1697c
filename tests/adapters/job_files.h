// A job and a batch as the files that the command line reads.
#ifndef PIPELOOM_TESTS_ADAPTERS_JOB_FILES_H_
#define PIPELOOM_TESTS_ADAPTERS_JOB_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/json_util.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "proto/convert/job_proto.h"

namespace pipeloom::testing {

// Returns the text of a JOB file that holds model and cluster in full.
inline absl::StatusOr<std::string> JobFile(const JobSpec& job) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(
      convert::ToProto(job), &text, options);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  return text;
}

// Returns the batch as JSON Lines.
inline std::string BatchFile(const BatchMetadata& batch) {
  std::string text;
  for (const SampleMetadata& sample : batch.samples) {
    const auto image = [](std::string* out, const ImageSize& size) {
      absl::StrAppend(out, "[", size.width, ", ", size.height, "]");
    };
    const auto clip = [](std::string* out, const VideoClip& video) {
      absl::StrAppend(out, "{\"frames\": ", video.frames,
                      ", \"width\": ", video.width,
                      ", \"height\": ", video.height,
                      ", \"seconds\": ", video.seconds, "}");
    };
    absl::StrAppend(
        &text, "{\"text_tokens\": ", sample.text_tokens, ", \"images\": [",
        absl::StrJoin(sample.images, ", ", image), "], \"videos\": [",
        absl::StrJoin(sample.videos, ", ", clip), "], \"audio_seconds\": [",
        absl::StrJoin(sample.audio_seconds, ", "), "]}\n");
  }
  return text;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ADAPTERS_JOB_FILES_H_
