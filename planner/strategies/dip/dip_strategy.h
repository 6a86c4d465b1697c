// DIP (PipeWeaver), arXiv 2504.14145, for comparison. Each module is in
// segments of its own, in sub-microbatches, with fused backwards. Every step is
// searched in three phases until the budget ends: segment order (MCTS), stage
// interleaving (dual queue), and memory choice by layer (knapsack and 0/1
// programs). docs/dip.md says how the paper's gaps were filled. Unlike the
// paper's, every answer is timed anew after the memory step and checked.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_DIP_STRATEGY_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_DIP_STRATEGY_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// The levels of the paper's ablation, each with those before it. Without
// `memory`, each module has one memory choice for the whole step, as for the
// other strategies.
struct DipOptions {
  // If false, the segments are the chunks of Megatron's interleaved schedule.
  bool interleave = true;
  bool reorder = true;
  bool memory = true;
  // With `memory`: whether stages are interleaved as if all pairs had
  // min-memory choices, as in the paper. If false, they are interleaved with
  // the best of some levels from keeping everything to min-memory, found with
  // the order of the batch. docs/dip.md has the difference.
  bool min_memory_only = false;
};

// Makes a strategy. It is named "dip"; without `memory` "dip-order"; without
// `reorder` too "dip-interleave"; without `interleave` too "dip-partition".
// Other combinations are named "dip-custom".
std::unique_ptr<Strategy> MakeDip(const DipOptions& options);

// The named variants, for tables of strategies.
std::unique_ptr<Strategy> MakeDip();
std::unique_ptr<Strategy> MakeDipPartition();
std::unique_ptr<Strategy> MakeDipInterleave();
std::unique_ptr<Strategy> MakeDipOrder();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_DIP_STRATEGY_H_
