// DistTrain (Zhang et al., SIGCOMM 2025; MMScale, arXiv 2408.04275), as far as
// ranks of one size allow: every unit (encoders, backbone, generators) has
// ranks of its own, microbatches are reordered, and 1F1B runs over all ranks as
// one pipeline.
//
// Sizes: of all ways to give the job's ranks to the units, the one with the
// least time of the sample's median step, emulated under the memory limit (the
// paper minimises warm-up plus steady state of the same pipeline in closed
// form).
//
// Order of microbatches (section 5 of the paper): the smallest goes first, the
// ranks - 1 next smallest go last, and each in between is the one whose first
// stage best fits the gap that the first rank has before its next backward.
// The order as given is kept where it is faster, or the other needs too much
// memory.
//
// Not modelled: tensor and data parallel sizes of each unit's own, with
// brokers between them; samples go to replicas as for every strategy.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DISTTRAIN_H_
#define PIPELOOM_PLANNER_STRATEGIES_DISTTRAIN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// The microbatches in the order in which they enter. O(microbatches x
// (microbatches + ranks)).
std::vector<int32_t> DistTrainMicrobatchOrder(const VirtualPipeline& pipeline);

// InvalidArgument when the pipeline has more than one segment.
absl::StatusOr<RankOrders> DistTrainOrders(const VirtualPipeline& pipeline);

// Its MakePartition is InvalidArgument when there are fewer ranks than units.
std::unique_ptr<Strategy> MakeDistTrain();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DISTTRAIN_H_
