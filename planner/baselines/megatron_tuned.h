// Megatron's interleaved 1F1B with the settings that a good engineer would
// choose by hand, once a job: how many virtual stages (1 to 8), how layers are
// balanced (by count, by parameters or by time), where the encoders are (first
// in the chain, in virtual stages of their own, or all on the first rank) and
// which modules are recomputed. Every combination is judged by the emulated
// time of the sample's median step, the best of them by the mean of several
// steps, each with one recompute setting for all steps.
//
// A step that the setting does not fit into takes the next that recomputes
// more, as a trainer would set one that always fits.
#ifndef PIPELOOM_PLANNER_BASELINES_MEGATRON_TUNED_H_
#define PIPELOOM_PLANNER_BASELINES_MEGATRON_TUNED_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// On a partition that its MakePartition has not chosen, only the order is
// Megatron's, and a step takes the fastest of all recompute choices. A second
// or two a job.
std::unique_ptr<Strategy> MakeMegatronTuned();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BASELINES_MEGATRON_TUNED_H_
