// Reads a partition file: proto3 JSON of pipeloom.v1.PartitionFile, strictly.
#ifndef PIPELOOM_WORKLOADS_PARTITION_READER_H_
#define PIPELOOM_WORKLOADS_PARTITION_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/job_spec.h"
#include "ir/partition.h"

namespace pipeloom::workloads {

// The result passes ValidatePartition and has the job's ranks; the job's
// partition rules are not checked. InvalidArgument names file, line, field and
// what is allowed, or which layers no stage holds.
absl::StatusOr<Partition> ParsePartition(absl::string_view text,
                                         const std::string& file_name,
                                         const JobSpec& job);

}  // namespace pipeloom::workloads

#endif  // PIPELOOM_WORKLOADS_PARTITION_READER_H_
