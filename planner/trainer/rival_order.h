// The order of another strategy, such as 1f1b, within a trainer's limits.
#ifndef PIPELOOM_PLANNER_TRAINER_RIVAL_ORDER_H_
#define PIPELOOM_PLANNER_TRAINER_RIVAL_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/trainer.h"
#include "planner/core/search_budget.h"
#include "planner/search/search_graph.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Returns FailedPrecondition if the trainer cannot execute any order of the
// strategy: one that chooses memory for each stage and microbatch, or splits
// backwards where the trainer does not.
absl::Status CheckRival(const TrainerLimits& trainer, const Strategy& rival);

// Orders a step's cells (MakeCells) as the strategy does. FailedPrecondition:
// the trainer cannot execute that order. Otherwise the errors of
// Strategy::MakeSchedule. REQUIRES: CheckRival accepts it.
absl::StatusOr<SearchResult> RivalOrder(const StageGraph& cells,
                                        const TrainerLimits& trainer,
                                        const Strategy& rival, uint64_t seed,
                                        const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_RIVAL_ORDER_H_
