// Megatron's interleaved 1F1B with the settings that a good engineer would
// choose by hand, once a job: how many virtual stages (1 to 8), how layers are
// balanced (by count, by parameters or by time), where the encoders are (first
// in the chain, in virtual stages of their own, or all on the first rank).
// Every combination is judged by the emulated time of the sample's median step,
// the best of them by the mean of several steps, each with the best setting of
// memory by module (planner/memory/memory_rules.h), which every strategy that
// does not choose memory by stage pair has.
#ifndef PIPELOOM_PLANNER_STRATEGIES_MEGATRON_TUNED_H_
#define PIPELOOM_PLANNER_STRATEGIES_MEGATRON_TUNED_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// Makes the strategy. Its MakePartition takes a second or two for each job.
std::unique_ptr<Strategy> MakeMegatronTuned();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_MEGATRON_TUNED_H_
