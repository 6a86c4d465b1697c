// DIP's segment reordering (arXiv 2504.14145, section 5.1): finds the order in
// which the segments of a step get their priorities, by Monte-Carlo tree search
// (planner/strategies/dip/tree_search.h has the formula). Each order is
// interleaved by the dual queue, its memory choices are optimised, and its step
// time is the score.
//
// Segments of one modality in one microbatch have equal structure, so they
// share a priority and keep their order: the units that are ordered are
// (microbatch, module, direction). Some points that the paper leaves open are
// settled as follows:
// - There are 10 completions, and alpha = 8 and beta = 0.1 on the score (best
//   known time / time).
// - A node of n visits has at most 1 + sqrt(n) children, as otherwise some
//   hundred units would keep the tree at its root.
// - An order that is slower than the best even with every pair at its fastest
//   candidate is scored by that time, without a memory step.
// - Children are in the order of the batch, forwards of a microbatch before its
//   backwards; one completion of each ten is that order.
// - There is a fixed number of trees, each with its own random numbers, instead
//   of one tree behind a mutex, so that the answer does not depend on thread
//   timing.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_SEGMENT_ORDER_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_SEGMENT_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/core/search_budget.h"
#include "planner/strategies/dip/dual_queue.h"
#include "planner/strategies/dip/memory_optimizer.h"

namespace pipeloom::planner {

// The units of a graph, numbered in the order of the batch.
struct SegmentUnits {
  explicit SegmentUnits(const StageGraph& graph);
  int32_t num_units = 0;
  std::vector<int32_t> unit{};  // Indexed by task.
};

// Returns priorities for the dual queue, indexed by task: the position of its
// unit in `order`.
std::vector<int64_t> SegmentPriorities(const SegmentUnits& units,
                                       absl::Span<const int32_t> order);

// Scores orders of units. Use one per thread.
class SegmentOrderEvaluator {
 public:
  // Keeps references. `lean` is the graph that stages are interleaved with.
  // `optimizer` is null if memory is not chosen; then `lean` is also the graph
  // that is timed.
  SegmentOrderEvaluator(const FlatGraph& lean, const SegmentUnits& units,
                        MemoryOptimizer* optimizer);

  bool CanRun() const { return queue_.CanRun(); }
  const MemoryShortage& shortage() const { return queue_.shortage(); }
  bool MemoryBinds() const { return queue_.MemoryBinds(); }
  void set_reserve(double reserve) { queue_.set_reserve(reserve); }
  // Returns the step time in ns; kNoLimit if no memory choice fits. If the time
  // is certain to be `give_up` or more, returns some lower bound of it that is.
  int64_t Evaluate(absl::Span<const int32_t> order, int64_t give_up = kNoLimit);
  // Returns the sequence of the last Evaluate.
  absl::Span<const int32_t> sequence() const { return queue_.sequence(); }

 private:
  const FlatGraph* lean_;
  const SegmentUnits* units_;
  MemoryOptimizer* optimizer_;
  DualQueue queue_;
};

// The ordering as a SequentialProblem: choice i takes the i-th unit that is
// left.
class SegmentOrderProblem {
 public:
  struct State {
    std::vector<int32_t> chosen{};
    std::vector<int32_t> left{};
  };
  // Keeps references. Once `budget` is used up, orders are not evaluated and
  // cost kNoLimit.
  SegmentOrderProblem(SegmentOrderEvaluator& evaluator, int32_t num_units,
                      const SearchBudget& budget)
      : evaluator_(&evaluator), num_units_(num_units), budget_(&budget) {}

  State Root() const;
  int32_t NumChoices(const State& state) const {
    return static_cast<int32_t>(state.left.size());
  }
  void Apply(State* state, int32_t choice) const {
    state->chosen.push_back(state->left[static_cast<size_t>(choice)]);
    state->left.erase(state->left.begin() + choice);
  }
  int64_t Cost(const State& state) {
    if (budget_->Exhausted(0)) return kNoLimit;
    const int64_t time = evaluator_->Evaluate(state.chosen, best_);
    best_ = std::min(best_, time);
    return time;
  }

 private:
  SegmentOrderEvaluator* evaluator_;
  int32_t num_units_;
  const SearchBudget* budget_;
  int64_t best_ = kNoLimit;
};

// Options of the search; see TreeSearchOptions.
struct SegmentOrderOptions {
  // If false, only the order of the batch is evaluated.
  bool search = true;
  int32_t rollouts = 10;
  double alpha = 8;
  double beta = 0.1;
  double widening = 1;
};

// The best order found.
struct SegmentOrderResult {
  std::vector<int32_t> order{};  // Units, first to last.
  double reserve = 0;            // DualQueue::set_reserve.
  int64_t step_time = 0;         // In ns.
  int64_t evaluations = 0;
};

// Searches for the best order, with the reserve that is best for the order of
// the batch where memory binds. `memory` is null if memory is not chosen. At
// least one evaluation is made. Equal seeds and evaluations give equal answers
// for any number of threads. REQUIRES: evaluators of `lean` can run.
SegmentOrderResult SearchSegmentOrder(const StageGraph& graph,
                                      const FlatGraph& lean,
                                      const partition::StepMemory* memory,
                                      const SegmentUnits& units, uint64_t seed,
                                      const SearchBudget& budget,
                                      const SegmentOrderOptions& options = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_SEGMENT_ORDER_H_
