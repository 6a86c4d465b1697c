// Starts from the plans of similar steps: list schedules that follow the lent
// times with the lent memory choices, so that they fit without further ado.
#ifndef PIPELOOM_PLANNER_STRATEGIES_STARTS_LENT_STARTS_H_
#define PIPELOOM_PLANNER_STRATEGIES_STARTS_LENT_STARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

// An order that fits with the choices of a lent step.
struct LentStart {
  int64_t time = kNoLimit;  // Step time, ns; kNoLimit: there is no order.
  RankOrders orders{};
  size_t step = 0;  // Index of the lent step.
  // See ListPolicy.
  double patience = 0;
  bool keeps_takers = false;
};

// The best starts, and what they cost.
struct LentStarts {
  std::vector<LentStart> starts{};  // At most two, the best first.
  int64_t evaluations = 0;          // List schedules.
};

// Makes one list schedule for each lent step, and three more for the two best:
// with other patience, and one that takes memory in the lent order. `graph` has
// everything kept and the limits to keep. Steps with whose choices some
// microbatch does not fit alone are left out. Equal for any number of threads.
absl::StatusOr<LentStarts> MakeLentStarts(const StageGraph& graph,
                                          const partition::StepMemory& memory,
                                          absl::Span<const LentStep> lent,
                                          int32_t threads);

// Makes a start again for a graph with other limits: by the same step, patience
// and order of memory.
absl::StatusOr<LentStart> LentStartWithin(const StageGraph& graph,
                                          const partition::StepMemory& memory,
                                          absl::Span<const LentStep> lent,
                                          const LentStart& start);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_STARTS_LENT_STARTS_H_
