// DualPipeV (DeepSeek, 2025; the V-shaped half of DualPipe of the DeepSeek-V3
// report): two chunks a rank in a V. In the steady state the forward of one
// chunk and the backward of the other run in pairs, whose communication and
// compute overlap. Each rank has eight phases; weight gradients are separate
// only where the pipeline would stall. torch.distributed.pipelining's
// ScheduleDualPipeV is the same.
//
// Here the passes of a pair are tasks one after the other, the forward first.
// Where the trainer can, planner/passes/pair_forwards.h makes pairs of them.
#ifndef PIPELOOM_PLANNER_ORDERS_DUAL_PIPE_V_H_
#define PIPELOOM_PLANNER_ORDERS_DUAL_PIPE_V_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

// The program of one rank.
struct DualPipeVProgram {
  std::vector<PassStep> steps{};
  // Indices into `steps` at which operations begin: a pass alone, a backward
  // with its weight gradient, or a pair, which is a forward and such a
  // backward.
  std::vector<size_t> operations{};
};

// Makes the program of a rank. The published order is for microbatches >= 2 x
// ranks. For fewer it is the order of 2 x ranks, some of which do nothing: the
// caller leaves them out. Weight gradients are all separate steps; where the
// original does not split the backward they directly follow it.
DualPipeVProgram DualPipeVRank(int32_t rank, int32_t ranks,
                               int32_t microbatches);

// Makes the orders. InvalidArgument if the pipeline has more than two segments.
absl::StatusOr<RankOrders> DualPipeVOrders(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_DUAL_PIPE_V_H_
