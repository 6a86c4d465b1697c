#include "planner/strategies/dip/segment_order.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "planner/core/executor.h"
#include "planner/strategies/dip/tree_search.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kTrees = 4;
// Shares of memory that are tried as DualQueue's reserve. The paper has none;
// the search that it is compared with tries the same ones.
constexpr double kReserves[] = {0, 0.25, 0.5, 0.75, 1};
// Evaluations of a tree between two looks at the common budget.
constexpr int64_t kRound = 40;

struct Tree {
  Tree(const StageGraph& graph, const FlatGraph& lean,
       const partition::StepMemory* memory, const SegmentUnits& units,
       uint64_t seed, const SearchBudget& budget,
       const SegmentOrderOptions& options)
      : optimizer(memory == nullptr
                      ? nullptr
                      : std::make_unique<MemoryOptimizer>(graph, *memory)),
        evaluator(lean, units, optimizer.get()),
        problem(evaluator, units.num_units, budget),
        search(problem, seed,
               {.alpha = options.alpha,
                .beta = options.beta,
                .rollouts = options.rollouts,
                .widening = options.widening}) {}
  std::unique_ptr<MemoryOptimizer> optimizer;
  SegmentOrderEvaluator evaluator;
  SegmentOrderProblem problem;
  TreeSearch<SegmentOrderProblem> search;
  int64_t evaluations = 0;
  bool exhausted = false;
};

}  // namespace

SegmentUnits::SegmentUnits(const StageGraph& graph)
    : unit(static_cast<size_t>(graph.num_tasks())) {
  // Forwards in data-flow order, backwards against it.
  using Key = std::tuple<MicrobatchId, bool, int32_t>;
  const auto key = [&](TaskId t) {
    const Task& task = graph.task(t);
    const bool backward = task.pass != Pass::kForward;
    return Key(task.microbatch, backward,
               backward ? -task.module.value() : task.module.value());
  };
  std::map<Key, int32_t> index;
  for (const TaskId t : graph.task_ids()) index[key(t)] = 0;
  for (auto& [units_key, number] : index) number = num_units++;
  for (const TaskId t : graph.task_ids()) {
    unit[static_cast<size_t>(t.value())] = index[key(t)];
  }
}

SegmentOrderEvaluator::SegmentOrderEvaluator(const FlatGraph& lean,
                                             const SegmentUnits& units,
                                             MemoryOptimizer* optimizer)
    : lean_(&lean), units_(&units), optimizer_(optimizer), queue_(lean) {}

std::vector<int64_t> SegmentPriorities(const SegmentUnits& units,
                                       absl::Span<const int32_t> order) {
  std::vector<int64_t> position(static_cast<size_t>(units.num_units), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    position[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  std::vector<int64_t> priority;
  priority.reserve(units.unit.size());
  for (const int32_t unit : units.unit) {
    priority.push_back(position[static_cast<size_t>(unit)]);
  }
  return priority;
}

int64_t SegmentOrderEvaluator::Evaluate(absl::Span<const int32_t> order,
                                        int64_t give_up) {
  const int64_t time = queue_.Run(SegmentPriorities(*units_, order));
  if (optimizer_ == nullptr) return time;
  const int64_t least = optimizer_->LeastTime(queue_.sequence());
  if (least >= give_up) return least;
  return optimizer_->Optimize(OrdersOf(*lean_, queue_.sequence()));
}

SegmentOrderProblem::State SegmentOrderProblem::Root() const {
  State state;
  state.left.resize(static_cast<size_t>(num_units_));
  std::iota(state.left.begin(), state.left.end(), 0);
  return state;
}

SegmentOrderResult SearchSegmentOrder(const StageGraph& graph,
                                      const FlatGraph& lean,
                                      const partition::StepMemory* memory,
                                      const SegmentUnits& units, uint64_t seed,
                                      const SearchBudget& budget,
                                      const SegmentOrderOptions& options) {
  SegmentOrderResult result;
  Random random(seed);
  std::vector<std::unique_ptr<Tree>> trees;
  trees.push_back(std::make_unique<Tree>(graph, lean, memory, units,
                                         random.Next(), budget, options));
  // Begins with the order of the batch.
  result.order = trees[0]->problem.Root().left;
  result.step_time = kNoLimit;
  SegmentOrderEvaluator& first = trees[0]->evaluator;
  for (const double reserve : kReserves) {
    if (result.evaluations > 0 &&
        (!first.MemoryBinds() || budget.Exhausted(result.evaluations))) {
      break;
    }
    first.set_reserve(reserve);
    const int64_t time = first.Evaluate(result.order);
    ++result.evaluations;
    if (time >= result.step_time) continue;
    result.step_time = time;
    result.reserve = reserve;
  }
  if (!options.search || budget.Exhausted(result.evaluations)) return result;
  while (static_cast<int32_t>(trees.size()) < kTrees) {
    trees.push_back(std::make_unique<Tree>(graph, lean, memory, units,
                                           random.Next(), budget, options));
  }
  for (const auto& tree : trees) tree->evaluator.set_reserve(result.reserve);
  const int64_t begun = result.evaluations;
  while (true) {
    bool any_left = false;
    int64_t done = begun;
    for (const auto& tree : trees) {
      done += tree->evaluations;
      any_left = any_left || !tree->exhausted;
    }
    result.evaluations = done;
    const int64_t share = (budget.max_evaluations - done) / kTrees;
    if (!any_left || share < options.rollouts || budget.Exhausted(done)) break;
    ParallelFor(budget.threads, kTrees, [&](int32_t i) {
      Tree& tree = *trees[static_cast<size_t>(i)];
      // A step makes no more evaluations than `rollouts`.
      const int64_t until =
          tree.evaluations + std::min(kRound, share) - options.rollouts;
      while (!tree.exhausted && tree.evaluations <= until &&
             !budget.Exhausted(0)) {
        const int32_t calls = tree.search.Step();
        tree.evaluations += calls;
        tree.exhausted = calls == 0;
      }
    });
  }
  for (const auto& tree : trees) {
    if (tree->evaluations > 0 && tree->search.best_cost() < result.step_time) {
      result.step_time = tree->search.best_cost();
      result.order = tree->search.best_state().chosen;
    }
  }
  return result;
}

}  // namespace pipeloom::planner
