// Optimus (Feng et al., USENIX ATC 2025), its coarse-grained half, as in DIP's
// evaluation: the backbone runs interleaved 1F1B on its own; encoders are
// spread over the same ranks, and whole encoder passes run while the backbone's
// ranks wait, or before its start and after its end.
//
// The backbone's timeline is fixed except for its start. Encoder forwards are
// inserted in the order of microbatches, each at the first free interval that
// holds it; the backbone starts as early as it can with all of them in time
// (found by bisection). Then the encoder backwards are inserted, each at the
// first free interval after its gradient. Finally the orders are timed anew.
//
// Not modelled: the fine-grained half (kernels of the encoder between kernels
// of the backbone, in the waits for tensor-parallel communication), and
// separate parallel sizes of the encoder. A model without encoders is run by
// interleaved 1F1B.
#ifndef PIPELOOM_PLANNER_STRATEGIES_OPTIMUS_H_
#define PIPELOOM_PLANNER_STRATEGIES_OPTIMUS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ir/plan/partition.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Makes the orders. Stages of segment 0 are the encoders'; the others are
// scheduled first, as an interleaved pipeline. O(encoder tasks x free
// intervals) for each timeline tried, of which there are up to 16.
absl::StatusOr<RankOrders> OptimusOrders(const StageGraph& graph,
                                         const Partition& partition);

// Makes the strategy. Leading encoders are in segment 0 over all ranks, the
// other modules concatenated in two segments (one if there are too few layers
// for two). Both are split by the time that layers take in the sample's median
// step.
std::unique_ptr<Strategy> MakeOptimus();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_OPTIMUS_H_
