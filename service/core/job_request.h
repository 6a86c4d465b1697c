// pipeloom.v1.Job and Partition -> ours, checked.
#ifndef PIPELOOM_SERVICE_CORE_JOB_REQUEST_H_
#define PIPELOOM_SERVICE_CORE_JOB_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "formats/job/spec_loader.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "pipeloom/v1/planner_service.pb.h"

namespace pipeloom::service {

// Where shipped jobs, models and clusters are read from.
struct ShippedFiles {
  std::string data_dir{};
  formats::FileReader read{};
};

// The message's JSON is what JOB files hold, and is read by their reader, so
// that both have one set of limits. Model and cluster may be names of shipped
// ones; paths are refused. InvalidArgument names the field and value; NotFound
// lists the names there are.
absl::StatusOr<JobSpec> JobFromProto(const v1::Job& proto,
                                     const ShippedFiles& files);
absl::StatusOr<JobSpec> ShippedJob(const std::string& name,
                                   const ShippedFiles& files);

// Sets one field of the message by its path, "parallel.pp", from text.
// InvalidArgument: no such field, a repeated or inner one, or a value that is
// none of its type.
absl::Status SetField(const std::string& path, const std::string& value,
                      v1::Job* job);

v1::Partition ToProto(const Partition& partition, const ModelSpec& model);
// InvalidArgument: a module that the model has not, or what ValidatePartition
// refuses, or ranks that are not the layout's.
absl::StatusOr<Partition> PartitionFromProto(const v1::Partition& proto,
                                             const JobSpec& job);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_JOB_REQUEST_H_
