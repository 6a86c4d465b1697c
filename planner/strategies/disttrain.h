// DistTrain (Zhang et al., SIGCOMM 2025; MMScale, arXiv 2408.04275), as far as
// ranks of one size allow: every unit (encoders, backbone, generators) has
// ranks of its own, microbatches are reordered, and 1F1B runs over all ranks as
// one pipeline.
//
// Sizes: of all ways to give the job's ranks to the units, the one with the
// least emulated time of the sample's median step under the memory limit is
// taken (the paper minimises warm-up plus steady state of the same pipeline in
// closed form).
//
// Order of microbatches (section 5 of the paper): the smallest goes first, the
// ranks - 1 next smallest go last, and each microbatch in between is the one
// whose first stage best fits the gap that the first rank has before its next
// backward. The given order is kept if it is faster, or if the other needs too
// much memory.
//
// Not modelled: separate tensor and data parallel sizes of each unit, with
// brokers between them. Samples go to replicas as for every strategy.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DISTTRAIN_H_
#define PIPELOOM_PLANNER_STRATEGIES_DISTTRAIN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Returns the microbatches in the order in which they enter the pipeline.
// O(microbatches x (microbatches + ranks)).
std::vector<int32_t> DistTrainMicrobatchOrder(const VirtualPipeline& pipeline);

// Returns the orders. InvalidArgument if the pipeline has more than one
// segment.
absl::StatusOr<RankOrders> DistTrainOrders(const VirtualPipeline& pipeline);

// Makes the strategy. Its MakePartition returns InvalidArgument if there are
// fewer ranks than units.
std::unique_ptr<Strategy> MakeDistTrain();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DISTTRAIN_H_
