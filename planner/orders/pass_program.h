// The program of each rank of a pipeline as passes of chunks and microbatches.
// Schedules with a split backward are made in this form before the tasks of a
// real step take their places.
//
// Chunk c of rank r is the cell (segment c, rank r) of a VirtualPipeline. In a
// V the first chunk goes down the ranks and the second comes back up:
//
//     rank 0   chunk 0  |            ^  chunk 1
//     rank 1   chunk 0  |            |  chunk 1
//     rank 2   chunk 0  '----------->'  chunk 1
#ifndef PIPELOOM_PLANNER_ORDERS_PASS_PROGRAM_H_
#define PIPELOOM_PLANNER_ORDERS_PASS_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/orders/virtual_pipeline.h"

namespace pipeloom::planner {

// One pass in a rank's program.
struct PassStep {
  Pass pass = Pass::kForward;
  int32_t chunk = 0;
  int32_t microbatch = 0;
  bool operator==(const PassStep&) const = default;
};
using PassPrograms = IdVector<RankId, std::vector<PassStep>>;

// Returns the tasks of the passes, in their order. Passes of microbatches or
// chunks that the pipeline does not have are left out: an order that is legal
// for more microbatches is legal without some of them.
RankOrders ToRankOrders(const VirtualPipeline& pipeline,
                        const PassPrograms& programs);

// Typical times of a pipeline, for schedules that are made for equal stages.
// The weight gradient is 0 if the backward is not split.
struct PassTimes {
  Duration forward{};
  Duration backward{};
  Duration weight_grad{};
  Duration transfer{};
};
// Returns medians over all cells that have the pass, and over all transfers
// between ranks.
PassTimes TypicalTimes(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_PASS_PROGRAM_H_
