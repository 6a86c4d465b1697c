// Reader of partition files: proto3 JSON of pipeloom.v1.PartitionFile,
// strictly.
#ifndef PIPELOOM_FORMATS_JOB_PARTITION_READER_H_
#define PIPELOOM_FORMATS_JOB_PARTITION_READER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/job/job_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/plan/partition.h"

namespace pipeloom::formats {

// Parses a partition. The result passes ValidatePartition and has the job's
// ranks; the job's partition rules are not checked. InvalidArgument names file,
// line, field and what is allowed, or which layers no stage holds.
absl::StatusOr<Partition> ParsePartition(absl::string_view text,
                                         const std::string& file_name,
                                         const JobSpec& job);

// The fields of a partition file that are known without its job.
struct PartitionHead {
  std::string job{};  // Empty: not given.
  int32_t num_ranks = 0;
  int64_t num_stages = 0;
};
// Checks a partition file's fields, except whether modules and layers are those
// of the job. InvalidArgument names file, line, field and what is allowed.
absl::StatusOr<PartitionHead> ParsePartitionHead(absl::string_view text,
                                                 const std::string& file_name);

// The layout that the partition was searched with, for planning with the file.
// Only the ranges of the sizes are checked.
struct PartitionLayout {
  ParallelLayout parallel{};
  std::vector<ModuleParallelism> modules{};
  int32_t microbatches = 0;  // Per replica; 0: the job's.
};
// Parses the layout of a partition file; nullopt if it has none.
absl::StatusOr<std::optional<PartitionLayout>> ParsePartitionLayout(
    absl::string_view text, const std::string& file_name);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_PARTITION_READER_H_
