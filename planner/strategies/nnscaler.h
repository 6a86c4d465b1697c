// nnScaler (Lin et al., OSDI 2024) as in DIP's evaluation: one static plan for
// a representative workload, made once a job. The model's layers are one chain
// of mixed modules, with one stage a rank. Its cut is searched on the sample's
// median step, and every step is then run by 1F1B on that cut.
//
// The search starts from the best of four cuts with the least largest stage
// (dynamic programming over the layers' times, parameters, both, counts). It
// moves one boundary at a time by one or four layers, judged by the emulated
// 1F1B step under the memory limit, as long as that helps. Not implemented are
// nnScaler's tensor-parallel plans for each operator, as tp is the job's.
// Unlike in nnScaler, the choice of recomputation is made anew every step.
#ifndef PIPELOOM_PLANNER_STRATEGIES_NNSCALER_H_
#define PIPELOOM_PLANNER_STRATEGIES_NNSCALER_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// Makes the strategy.
std::unique_ptr<Strategy> MakeNnScaler();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_NNSCALER_H_
