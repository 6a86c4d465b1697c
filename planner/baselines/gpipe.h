// GPipe (Huang et al., 2019): all forwards, then all backwards, the last
// microbatch first.
#ifndef PIPELOOM_PLANNER_BASELINES_GPIPE_H_
#define PIPELOOM_PLANNER_BASELINES_GPIPE_H_

#include <memory>

#include "planner/baselines/virtual_pipeline.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

RankOrders GPipeOrders(const VirtualPipeline& pipeline);

// Modules concatenated, one segment, near-equal layer counts.
std::unique_ptr<Strategy> MakeGPipe();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BASELINES_GPIPE_H_
