// An open job: its partition and the costs with which its steps are priced.
#ifndef PIPELOOM_SERVICE_JOBS_SERVED_JOB_H_
#define PIPELOOM_SERVICE_JOBS_SERVED_JOB_H_

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
#include "ir/plan/carried_step.h"
#include "ir/plan/partition.h"
#include "ir/profile/device_profile.h"
#include "partition/batching/balance_step.h"
#include "planner/core/search_budget.h"
#include "planner/job/job_planner.h"

namespace pipeloom::service {

// The costs with which a step and all its replicas are planned.
struct CostEpoch {
  IdVector<ModuleId, emulator::PassFactors> factors{};
  std::unique_ptr<const planner::JobPlanner> planner{};
  // Fingerprint of everything that a plan depends on, except its batch.
  Fingerprint context{};
};

// Returns the profile of a device by its name, or null if it has none. An
// error: its profile cannot be used.
using ProfileSource =
    std::function<absl::StatusOr<std::shared_ptr<const DeviceProfile>>(
        const std::string&)>;

// The lessons of a job's sample steps (planner/job/warm_up.h).
using Lessons = std::vector<std::shared_ptr<const CarriedStep>>;

// The effort of a search for a job's partition, and of what follows it.
struct PartitionEffort {
  std::function<bool()> expired{};  // Empty: do not search.
  std::stop_token stop{};           // Requested when `expired` is true.
  int32_t threads = 1;
  std::stop_token left{};  // The job is not wanted any more.
  // Returns the budget of a search of sample steps that begins now
  // (planner/job/warm_up.h). Empty: there is none.
  std::function<planner::SearchBudget()> warm_up{};
  // Lessons of such a search that was made before, of the given partition; then
  // there is no other.
  Lessons lessons{};
};

// See the top of the file. Immutable.
class ServedJob {
 public:
  // Makes a job. Finds a partition unless one is given: by the strategy's rule,
  // which for "pipeloom" a search then improves for as long as `effort` allows.
  // There is no search for jobs whose steps have more than 40,000 tasks. Then
  // searches sample steps, if `effort` says so and there is a sample.
  // `profiles` may be empty. Takes milliseconds without a search.
  // InvalidArgument: a profile cannot be used; `sample` is empty, but needed to
  // make a partition or to balance the job's samples; or `defer_surplus` is set
  // for a job with balanced samples. Cancelled: `effort.left` was requested.
  // Other errors are those of planner::JobPlanner.
  static absl::StatusOr<std::shared_ptr<const ServedJob>> Create(
      std::string id, JobSpec job, const BatchMetadata& sample,
      std::optional<Partition> partition, const ProfileSource& profiles,
      const PartitionEffort& effort = {}, bool defer_surplus = false);

  const std::string& id() const { return id_; }
  const JobSpec& spec() const { return spec_; }
  // Returns `spec` with one replica and no limit of microbatches, so that a
  // batch gets as many as it needs.
  const JobSpec& unlimited() const { return unlimited_; }
  const Partition& partition() const { return partition_; }
  int32_t partitions_tried() const { return partitions_tried_; }
  // Returns the costs of samples, if the job's samples are to be balanced. They
  // are those of the time when the job was opened, so that a batch is always
  // dealt in the same way.
  const std::optional<partition::SampleCosts>& sample_costs() const {
    return sample_costs_;
  }
  // Returns the samples from which those costs were made; empty if there are
  // none.
  const BatchMetadata& sample() const { return sample_; }
  // Returns what sample steps teach; empty if there was no search of them.
  const Lessons& warm_up() const { return warm_up_; }
  // Returns whether steps are planned by planner/job/plan_deferred.h.
  bool defer_surplus() const { return defer_surplus_; }

  // Makes costs corrected by these factors. Takes about 10 us; prices are
  // computed at their first use.
  std::shared_ptr<const CostEpoch> MakeEpoch(
      const IdVector<ModuleId, emulator::PassFactors>& factors) const;

 private:
  ServedJob() = default;
  absl::StatusOr<std::unique_ptr<const planner::JobPlanner>> MakePlanner(
      const BatchMetadata& sample, std::optional<Partition> partition,
      const IdVector<ModuleId, emulator::PassFactors>& factors = {},
      std::stop_token stop = {}) const;
  // Replaces the partition by a better one, if the search finds any.
  absl::Status SearchPartition(const planner::JobPlanner& planner,
                               const BatchMetadata& sample,
                               const PartitionEffort& effort);

  std::string id_{};
  JobSpec spec_{};
  JobSpec unlimited_{};
  std::shared_ptr<const emulator::OpCostModel> operators_{};
  // The profiles from which `operators_` was made.
  std::vector<std::shared_ptr<const DeviceProfile>> profiles_{};
  Partition partition_{};
  int32_t partitions_tried_ = 0;
  std::optional<partition::SampleCosts> sample_costs_{};
  BatchMetadata sample_{};
  Lessons warm_up_{};
  bool defer_surplus_ = false;
  Fingerprint print_{};
};

// Returns a fingerprint of the job's message, which is the same in every
// process.
Fingerprint FingerprintOf(const JobSpec& job);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_SERVED_JOB_H_
