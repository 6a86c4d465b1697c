// The jobs and batches that ship, for tests that plan them.
#ifndef PIPELOOM_TESTS_PLANNER_SHIPPED_FILES_H_
#define PIPELOOM_TESTS_PLANNER_SHIPPED_FILES_H_

#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/job/spec_loader.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::testing {

inline constexpr char kWorkloads[] = PIPELOOM_SOURCE_DIR "/workloads";

inline absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(path);
  return text.str();
}

inline absl::StatusOr<JobSpec> ShippedJob(const std::string& name) {
  return formats::LoadJob(name, kWorkloads, ReadFile);
}

// `name` is "text.jsonl", for example.
inline absl::StatusOr<BatchMetadata> ShippedBatch(const std::string& name) {
  const std::string path = absl::StrCat(kWorkloads, "/batches/", name);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return formats::ParseBatch(text, path, nullptr);
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_SHIPPED_FILES_H_
