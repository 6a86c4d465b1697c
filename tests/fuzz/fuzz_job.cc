// Any bytes as a job file: an error or a job that passes its own check.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "formats/job/spec_loader.h"
#include "ir/job/job_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto no_files =
      [](const std::string& path) -> absl::StatusOr<std::string> {
    return absl::NotFoundError(path);
  };
  const auto job =
      pipeloom::formats::ParseJob(text, "fuzz.json", "data", no_files);
  if (job.ok()) {
    PIPELOOM_CHECK(pipeloom::ValidateJobSpec(*job).ok());
    PIPELOOM_CHECK(pipeloom::Parameters(job->model) >= 0);
  }
  (void)pipeloom::formats::ParseModel(text, "fuzz.json");
  (void)pipeloom::formats::ParseCluster(text, "fuzz.json");
  return 0;
}
