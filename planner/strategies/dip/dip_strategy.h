// DIP (PipeWeaver), arXiv 2504.14145: the baseline to beat. Each module in
// segments of its own, sub-microbatches, fused backward; every step a search in
// three phases until the budget ends: segment order (MCTS), stage interleaving
// (dual queue), memory choice by layer (knapsack and 0/1 programs). How the
// paper's gaps were filled: docs/dip.md. Unlike the paper's, every answer is
// timed anew after the memory step and checked.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_DIP_STRATEGY_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_DIP_STRATEGY_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// The levels of the paper's ablation, each with those before it. Without
// `memory` one memory choice a module holds for the step, as for the other
// strategies.
struct DipOptions {
  // Off: the segments as the chunks of Megatron's interleaved schedule.
  bool interleave = true;
  bool reorder = true;
  bool memory = true;
  // With `memory`: stages are interleaved as if all pairs had the leanest
  // choices, as the paper does. Off: at the best of some levels between
  // keeping everything and that, found with the order of the batch, where the
  // leanest is one of them. docs/dip.md has the difference.
  bool min_memory_only = false;
};

// Named "dip"; "dip-order" without `memory`, "dip-interleave" without `reorder`
// too, "dip-partition" without `interleave` too; other combinations have
// "dip-custom".
std::unique_ptr<Strategy> MakeDip(const DipOptions& options);

// For tables of names.
std::unique_ptr<Strategy> MakeDip();
std::unique_ptr<Strategy> MakeDipPartition();
std::unique_ptr<Strategy> MakeDipInterleave();
std::unique_ptr<Strategy> MakeDipOrder();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_DIP_STRATEGY_H_
