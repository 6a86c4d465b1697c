// Several strategies on the same steps.
#ifndef PIPELOOM_STUDIES_COMPARE_COMPARE_STRATEGIES_H_
#define PIPELOOM_STUDIES_COMPARE_COMPARE_STRATEGIES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/carried_step.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"
#include "partition/batching/batch_split.h"
#include "studies/job/job_input.h"
#include "studies/job/planned_step.h"
#include "studies/job/study_context.h"

namespace pipeloom::studies {

// The name of the row in which pipeloom's plan of the first step is replayed on
// all steps.
inline constexpr absl::string_view kStaticRow = "static";

struct StrategyRow {
  std::string schedule{};
  absl::Status status{};  // An error says why the strategy cannot run.
  std::vector<PlannedStep> steps{};
  // Whether it is planned with the given partition, not with its own.
  bool given_partition = false;
};

struct CompareOptions {
  std::vector<std::string> strategies{};  // Names, and kStaticRow.
  SearchSettings search{};
  // A partition for `pipeloom` and `dip`, or for all.
  std::optional<Partition> partition{};
  bool partition_for_all = false;
  // The own partition of `pipeloom`, if it was searched before.
  std::optional<Partition> searched{};
  // Lessons of sample steps, for the searches of `pipeloom`'s rows
  // (planner/job/warm_up.h).
  std::vector<std::shared_ptr<const CarriedStep>> lessons{};
  // The costs of the same job with slow ranks or links, by which every row's
  // steps are planned; its partition is that of the healthy job. Null: none.
  const emulator::StageCostModel* slow_costs = nullptr;
  // Whose limits all rows keep; null: none. The rows are planned without
  // disturbances.
  const TrainerLimits* trainer = nullptr;
};

// Plans all steps with each strategy; all search with the same settings. The
// rows are in the order of the options. InvalidArgument: a name is unknown, or
// is kStaticRow for a trainer. Cancelled: a stop was requested.
absl::StatusOr<std::vector<StrategyRow>> CompareStrategies(
    const JobInput& input, const std::vector<partition::PackedStep>& packed,
    const emulator::StageCostModel& costs, const CompareOptions& options,
    const StudyContext& context);

// Returns the fastest row of a strategy that plans without a look at the step,
// as trainers do without a planner; null if there is none.
const StrategyRow* BestStatic(const std::vector<StrategyRow>& rows);
// Return the mean step time of that row, and of `megatron`; 0 if there is none.
Duration BestStaticTime(const std::vector<StrategyRow>& rows);
Duration MegatronTime(const std::vector<StrategyRow>& rows);
// Returns the mean over the steps of the slowest replica's 90th percentile
// under disturbances; none if the search was without them.
std::optional<Duration> MeanP90(const StrategyRow& row);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_COMPARE_COMPARE_STRATEGIES_H_
