// Conversion of pipeloom.v1.Job and Partition from and to values, with checks.
#ifndef PIPELOOM_SERVICE_JOBS_JOB_REQUEST_H_
#define PIPELOOM_SERVICE_JOBS_JOB_REQUEST_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "formats/job/spec_loader.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "proto/convert/batch_proto.h"

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

// A checked OpenJob request.
struct JobRequest {
  std::string id{};  // Made from name and content if the caller gives none.
  Fingerprint content{};
  Fingerprint close_key{};  // Zeros: none.
  JobSpec spec{};
  BatchMetadata sample{};
  std::optional<Partition> given{};
  std::optional<Partition> resumed{};
  // None: as the service chooses.
  std::optional<std::chrono::microseconds> partition_time{};
  bool defer_surplus = false;

  // Returns the time to search for a partition in; 0: no search.
  std::chrono::nanoseconds SearchTime(std::chrono::nanoseconds usual) const {
    if (given.has_value() || resumed.has_value()) return {};
    return partition_time.value_or(
        std::chrono::duration_cast<std::chrono::microseconds>(usual));
  }
};
// InvalidArgument and NotFound name the field and value.
absl::StatusOr<JobRequest> ReadJobRequest(const v1::OpenJobRequest& request,
                                          const ShippedFiles& files,
                                          const convert::BatchLimits& limits);

// Returns the fingerprint of a close_key; zeros for an empty one.
Fingerprint PrintOf(const std::string& close_key);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_JOB_REQUEST_H_
