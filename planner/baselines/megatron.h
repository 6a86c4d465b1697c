// Megatron as the usual baseline for multimodal models: modules concatenated,
// layers balanced by parameters, interleaved 1F1B with two chunks a rank.
#ifndef PIPELOOM_PLANNER_BASELINES_MEGATRON_H_
#define PIPELOOM_PLANNER_BASELINES_MEGATRON_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

std::unique_ptr<Strategy> MakeMegatron();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BASELINES_MEGATRON_H_
