// nnScaler (Lin et al., OSDI 2024) as DIP's evaluation has it: one static plan
// for a representative workload, made once for a job. The model's layers are
// one chain, modules mixed, one stage a rank; its cut is searched on the
// sample's median step, and every step is then run by 1F1B on that cut.
//
// The search starts from the best of four cuts with the least largest stage
// (dynamic programming over the layers' times, parameters, both, counts) and
// moves one boundary at a time by one or four layers, judged by the emulated
// 1F1B step under the memory limit, while that helps. What it does not have of
// nnScaler: tensor-parallel plans per operator, as tp is the job's. What it has
// beyond it: the choice of what to recompute is made anew every step.
#ifndef PIPELOOM_PLANNER_STRATEGIES_NNSCALER_H_
#define PIPELOOM_PLANNER_STRATEGIES_NNSCALER_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

std::unique_ptr<Strategy> MakeNnScaler();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_NNSCALER_H_
