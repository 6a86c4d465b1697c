// Whole last backwards, for reductions that begin with them.
//
// The gradients of a stage are reduced while the last pass that adds to them
// runs. A weight gradient apart from its backward is a short pass, which hides
// little (emulator/stage/step_update.h).
#ifndef PIPELOOM_PLANNER_REFINE_FUSE_LAST_H_
#define PIPELOOM_PLANNER_REFINE_FUSE_LAST_H_

#include <optional>

#include "absl/status/statusor.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// The backwards of a rank that become whole.
enum class FusedPasses {
  kLast,  // The last of each stage.
  kAll,
};

// Returns `made` with these backwards of `rank` whole, where they are split and
// run together with no forward; nullopt if there are none. Weight gradients
// that ran during such a backward come before it. Memory is not checked.
// `graph` has everything kept; `made` has choices of `choices`. O(tasks +
// edges).
absl::StatusOr<std::optional<MemorySchedule>> FuseOnRank(
    const StageGraph& graph, const partition::StepMemory& choices,
    const MemorySchedule& made, RankId rank, FusedPasses which);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_REFINE_FUSE_LAST_H_
