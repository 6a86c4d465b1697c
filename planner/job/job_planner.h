// The front door of the planner: plans the training steps of one job.
//
//   const auto planner = JobPlanner::Create(job, sample);
//   const auto plan = (*planner)->PlanStep(batch, {.budget = budget});
#ifndef PIPELOOM_PLANNER_JOB_JOB_PLANNER_H_
#define PIPELOOM_PLANNER_JOB_JOB_PLANNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

struct JobPlannerOptions {
  // One of StrategyNames(); empty: the job's search.schedule.
  std::string strategy{};
  // Prices of operators, from the device's profile
  // (formats/profile/device_profiles.h, emulator/cost/profile_cost.h). Null: by
  // the peak rates of the job's devices, which makes steps some 10 % too short.
  std::unique_ptr<const emulator::OpCostModel> operators{};
  // Changes the cost model before anything is priced with it, such as by
  // measured times. Empty: not changed.
  std::function<absl::Status(emulator::StageCostModel*)> correct{};
  // Which layers are where; none: the strategy's own choice for the sample.
  std::optional<Partition> partition{};
  // Ends that choice, which may take seconds.
  std::stop_token stop{};
};

// A step of a job to plan: `replica`'s share of the samples of `batch` from
// `first_sample` on.
struct StepRequest {
  int64_t first_sample = 0;
  int64_t step = 0;  // Only a number in the plan.
  int32_t replica = 0;
  uint64_t seed = 1;
  SearchBudget budget{};
  // PlanResult::carried of other steps or replicas of the job, the latest last:
  // the search goes on from the most similar one.
  std::vector<std::shared_ptr<const CarriedStep>> carried{};
};

// Owns what planning a job's steps needs: its strategy, its cost model and its
// partition, which stays the same for all steps. Const methods may be called
// from any number of threads.
class JobPlanner {
 public:
  // Makes a planner; `sample`: typical samples, for which the strategy chooses
  // its partition. InvalidArgument: the job, the strategy's name or the
  // partition is not valid, or the strategy cannot run the job. Cancelled: a
  // stop was requested.
  static absl::StatusOr<std::unique_ptr<JobPlanner>> Create(
      JobSpec job, const BatchMetadata& sample, JobPlannerOptions options = {});

  // Packs the samples of one step and plans one replica of it. Errors: those of
  // partition::PackStep() and planner::PlanStep(): InvalidArgument for a batch
  // that does not suffice, ResourceExhausted if nothing fits the memory limit.
  absl::StatusOr<PlanResult> PlanStep(const BatchMetadata& batch,
                                      const StepRequest& request) const;

  const JobSpec& job() const { return costs_.job(); }
  const Strategy& strategy() const { return *strategy_; }
  const emulator::StageCostModel& costs() const { return costs_; }
  const Partition& partition() const { return prepared_.partition; }
  // The same for the functions of planner/step, which take steps that are
  // packed already. Valid as long as this planner.
  const PreparedJob& prepared() const { return prepared_; }

 private:
  JobPlanner(const JobSpec& job, JobPlannerOptions* options);

  std::unique_ptr<Strategy> strategy_{};
  emulator::StageCostModel costs_;
  PreparedJob prepared_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_JOB_JOB_PLANNER_H_
