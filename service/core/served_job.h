// A job that is open: its partition and what its steps are priced with.
#ifndef PIPELOOM_SERVICE_CORE_SERVED_JOB_H_
#define PIPELOOM_SERVICE_CORE_SERVED_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/profile/device_profile.h"
#include "partition/batching/balance_step.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::service {

// The costs with which a step and all its replicas are planned.
struct CostEpoch {
  IdVector<ModuleId, emulator::PassFactors> factors{};
  std::unique_ptr<const emulator::StageCostModel> costs{};
  planner::PreparedJob prepared{};
  // Of all that a plan depends on besides its batch.
  Fingerprint context{};
};

// Of a device by its name; null: it has none.
using ProfileSource =
    std::function<std::shared_ptr<const DeviceProfile>(const std::string&)>;

// For how long a job's partition may be searched for.
struct PartitionEffort {
  std::function<bool()> expired{};  // Empty: there is no search.
  std::stop_token stop{};           // Requested when `expired` is true.
  int32_t threads = 1;
};

class ServedJob {
 public:
  // Finds a partition unless one is given: by the strategy's rule, and for
  // "pipeloom" from there by a search as long as `effort` allows, which keeps
  // the best it saw. Steps of more than 40,000 tasks are not searched for.
  // `profiles` may be empty. Without a search milliseconds. InvalidArgument:
  // the strategy is not known, or `sample` is empty and needed: to make a
  // partition by, or since the job's samples are to be balanced; or balanced
  // samples are to be deferred.
  static absl::StatusOr<std::shared_ptr<const ServedJob>> Create(
      std::string id, JobSpec job, const BatchMetadata& sample,
      std::optional<Partition> partition, const ProfileSource& profiles,
      const PartitionEffort& effort = {}, bool defer_surplus = false);

  const std::string& id() const { return id_; }
  const JobSpec& spec() const { return spec_; }
  // `spec` with as many microbatches as a batch needs, and one replica.
  const JobSpec& unlimited() const { return unlimited_; }
  const Partition& partition() const { return partition_; }
  int32_t partitions_tried() const { return partitions_tried_; }
  // What samples cost, if the job's are to be balanced. By the costs as they
  // were when the job was opened, so that a batch is dealt the same way always.
  const std::optional<partition::SampleCosts>& sample_costs() const {
    return sample_costs_;
  }
  // What those were made from; empty if they were not.
  const BatchMetadata& sample() const { return sample_; }
  // Steps are planned by planner/step/plan_deferred.h.
  bool defer_surplus() const { return defer_surplus_; }

  // About 10 us, and what the first prices cost.
  std::shared_ptr<const CostEpoch> MakeEpoch(
      const IdVector<ModuleId, emulator::PassFactors>& factors) const;

 private:
  ServedJob() = default;
  absl::Status FindPartition(const BatchMetadata& sample,
                             const PartitionEffort& effort);

  std::string id_{};
  JobSpec spec_{};
  JobSpec unlimited_{};
  std::unique_ptr<const planner::Strategy> strategy_{};
  std::shared_ptr<const emulator::OpCostModel> operators_{};
  // What the operators' costs are made from.
  std::vector<std::shared_ptr<const DeviceProfile>> profiles_{};
  Partition partition_{};
  int32_t partitions_tried_ = 0;
  std::optional<partition::SampleCosts> sample_costs_{};
  BatchMetadata sample_{};
  bool defer_surplus_ = false;
  Fingerprint print_{};
};

// Of a replica's plan, at most: a backward in two parts everywhere.
int64_t CountTasks(const Microbatches& microbatches,
                   const Partition& partition);

// Of the message's content, the same in every process.
Fingerprint FingerprintOf(const JobSpec& job);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_SERVED_JOB_H_
