// A job that is open: its partition and what its steps are priced with.
#ifndef PIPELOOM_SERVICE_SERVED_JOB_H_
#define PIPELOOM_SERVICE_SERVED_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "emulator/stage_cost.h"
#include "ir/batch_metadata.h"
#include "ir/device_profile.h"
#include "ir/job_spec.h"
#include "ir/partition.h"
#include "planner/plan_step.h"
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

class ServedJob {
 public:
  // Finds a partition unless one is given; that may take seconds. `profile`
  // may be null. InvalidArgument: the strategy is not known, or there is
  // nothing to make a partition by.
  static absl::StatusOr<std::shared_ptr<const ServedJob>> Create(
      std::string id, JobSpec job, const BatchMetadata& sample,
      std::optional<Partition> partition,
      std::shared_ptr<const DeviceProfile> profile);

  const std::string& id() const { return id_; }
  const JobSpec& spec() const { return spec_; }
  // `spec` with as many microbatches as a batch needs, and one replica.
  const JobSpec& unlimited() const { return unlimited_; }
  const Partition& partition() const { return partition_; }

  // About 10 us, and what the first prices cost.
  std::shared_ptr<const CostEpoch> MakeEpoch(
      const IdVector<ModuleId, emulator::PassFactors>& factors) const;

 private:
  ServedJob() = default;

  std::string id_{};
  JobSpec spec_{};
  JobSpec unlimited_{};
  std::unique_ptr<const planner::Strategy> strategy_{};
  std::shared_ptr<const emulator::OpCostModel> operators_{};
  Partition partition_{};
  Fingerprint print_{};
};

// Of the message's content, the same in every process.
Fingerprint FingerprintOf(const JobSpec& job);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_SERVED_JOB_H_
