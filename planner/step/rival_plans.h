// Plans that other strategies make of a step with little or no search: classic
// orders, DIP's interleaving of the batch as it comes and DIP's first rollouts,
// each with the memory settings it would try by itself. A strategy that starts
// from others (planner/strategy_abilities.h) returns the fastest of them if its
// own plan is slower. So in a table of strategies no such row is faster than
// its own row.
#ifndef PIPELOOM_PLANNER_STEP_RIVAL_PLANS_H_
#define PIPELOOM_PLANNER_STEP_RIVAL_PLANS_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Makes the plans of rivals that take little time, without bounds, and returns
// the fastest; nullopt if they cannot plan the partition or nothing fits. Under
// a deadline a search takes nearly all the time, so that no rival is begun
// after it, and on large steps a classic order may still be the better plan
// (internvl3-38b, image_text, 100 ms, megatron-tuned's partition: 5.9 s a step
// instead of 6.5). `tight_rivals` are for steps whose memory is tight
// (MemoryIsTight).
std::optional<PlanResult> QuickPlan(
    const std::vector<std::unique_ptr<Strategy>>& rivals,
    const std::vector<std::unique_ptr<Strategy>>& tight_rivals,
    const PreparedJob& job, const PlanInput& input);

// Returns the time of a step as a search judges a partition by it: of the
// strategy's plan or of the quick plans that it makes in every step with a
// deadline, the shortest; of large steps only of the first of these. Errors are
// those of the strategy's plan.
absl::StatusOr<Duration> JudgedTime(const PreparedJob& job,
                                    const PlanInput& input);
// Returns the shortest step time of the quick plans alone. For a large step
// only the first quick plan that fits is made. NotFound: the strategy makes no
// quick plans, or none fits.
absl::StatusOr<Duration> QuickTime(const PreparedJob& job,
                                   const PlanInput& input);

// Returns `own`, the plan of the job's strategy, or the fastest of the rivals'
// plans on the same partition if that is faster; it then has the name of the
// job's strategy and the bound of `own`. If `own` is ResourceExhausted, every
// rival is tried, whatever the time. `quick` is the plan of one that was made
// before. Otherwise none is begun once 60 % of the
// time is used; the number of evaluations does not end the attempts, as a plan
// takes few. A stop request always does. Evaluations are added up. Errors are
// those of `own`.
absl::StatusOr<PlanResult> BestOfRivals(
    const std::vector<std::unique_ptr<Strategy>>& rivals,
    const PreparedJob& job, const PlanInput& input,
    absl::StatusOr<PlanResult> own,
    std::optional<PlanResult> quick = std::nullopt);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_RIVAL_PLANS_H_
