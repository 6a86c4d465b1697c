// The classic schedules as strategies: modules concatenated, layers balanced,
// and one fixed order for each strategy (orders/).
#ifndef PIPELOOM_PLANNER_STRATEGIES_CLASSIC_H_
#define PIPELOOM_PLANNER_STRATEGIES_CLASSIC_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// These have one segment, with layers balanced by count.
std::unique_ptr<Strategy> MakeGPipe();
std::unique_ptr<Strategy> MakeOneFOneB();
// Has two segments, one after another over the ranks, balanced by count.
std::unique_ptr<Strategy> MakeInterleaved();
// The usual baseline for multimodal models: as interleaved, but balanced by
// parameters.
std::unique_ptr<Strategy> MakeMegatron();

// These balance layers by count or by parameters, whichever plans the sample's
// median step faster. zb-h1 has one segment; the others have two in a V, or one
// if there are too few layers for two.
std::unique_ptr<Strategy> MakeZeroBubbleH1();
std::unique_ptr<Strategy> MakeZeroBubble2p();
std::unique_ptr<Strategy> MakeZeroBubbleV();
std::unique_ptr<Strategy> MakeDualPipeV();
std::unique_ptr<Strategy> MakeVHalf();
std::unique_ptr<Strategy> MakeVMin();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_CLASSIC_H_
