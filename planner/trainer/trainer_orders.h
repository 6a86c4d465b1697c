// The search for an order that a trainer can execute (ir/plan/trainer.h).
//
// It works on cells. The classic orders, with the microbatches in a few orders,
// are the starts. The places of microbatches in the best are searched, which
// keeps its pattern. Where a trainer needs one order of forwards on all stages,
// that of the best is then fixed by dependencies, and the order is searched as
// any other; last, the places once more.
#ifndef PIPELOOM_PLANNER_TRAINER_TRAINER_ORDERS_H_
#define PIPELOOM_PLANNER_TRAINER_TRAINER_ORDERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/trainer.h"
#include "planner/core/search_budget.h"
#include "planner/search/search_graph.h"

namespace pipeloom::planner {

// Searches an order of a step's cells (MakeCells) within their limits. The
// result passes ValidateSchedule and is one the trainer can execute; `start` is
// taken if it is. ResourceExhausted: nothing was found to fit.
// FailedPrecondition: the trainer has no order for so few microbatches.
// Deterministic for a seed and a number of evaluations.
absl::StatusOr<SearchResult> SearchTrainerOrder(const StageGraph& cells,
                                                const TrainerLimits& trainer,
                                                uint64_t seed,
                                                const SearchBudget& budget,
                                                const RankOrders& start = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_TRAINER_ORDERS_H_
