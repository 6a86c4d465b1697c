// Conversion of pipeloom.v1.Job and Partition from and to values, with checks.
#ifndef PIPELOOM_SERVICE_CORE_JOB_REQUEST_H_
#define PIPELOOM_SERVICE_CORE_JOB_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "formats/job/spec_loader.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "pipeloom/v1/planner_service.pb.h"

namespace pipeloom::service {

// The source of shipped jobs, models and clusters.
struct ShippedFiles {
  std::string data_dir{};
  formats::FileReader read{};
};

// Converts a job. The message's JSON has the form of a job file and is read by
// the same reader, so that both have the same limits. Model and cluster may be
// names of shipped ones; paths are refused. InvalidArgument names the field and
// value; NotFound lists the names there are.
absl::StatusOr<JobSpec> JobFromProto(const v1::Job& proto,
                                     const ShippedFiles& files);
// Loads a shipped job by its name. Errors are those of JobFromProto.
absl::StatusOr<JobSpec> ShippedJob(const std::string& name,
                                   const ShippedFiles& files);

// Sets one field of the message from text, by its path such as "parallel.pp".
// InvalidArgument: there is no such field, it is repeated or a message, or the
// value is not of its type.
absl::Status SetField(const std::string& path, const std::string& value,
                      v1::Job* job);

v1::Partition ToProto(const Partition& partition, const ModelSpec& model);
// Converts a partition. InvalidArgument: the model has no module of that name,
// ValidatePartition refuses the partition, or its number of ranks is not the
// layout's.
absl::StatusOr<Partition> PartitionFromProto(const v1::Partition& proto,
                                             const JobSpec& job);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_JOB_REQUEST_H_
