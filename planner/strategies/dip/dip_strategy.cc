#include "planner/strategies/dip/dip_strategy.h"

#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/placement/placement.h"
#include "planner/bounds/lower_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/orders/interleaved.h"
#include "planner/strategies/dip/segment_order.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::StepMemory;

// Shares of the way from keeping everything to min-memory.
constexpr double kShares[] = {0, 0.1, 0.25, 0.5};

// Returns min-memory, uniform levels, and each module alone at min-memory.
std::vector<MemorySelection> Levels(const StageGraph& graph,
                                    const StepMemory& memory) {
  const std::vector<Bytes> copies = memory.CopySizes();
  const StepMemory uncopied = copies.empty() ? memory : memory.WithoutCopies();
  const auto whole = [&](const MemorySelection& selection) {
    return copies.empty() ? selection : FromWithoutCopies(memory, selection);
  };
  const MemorySelection min_memory = whole(uncopied.MinMemory());
  // The choices that hold least may peak high in the backward, and the other
  // way round.
  std::vector<MemorySelection> levels = {
      min_memory, whole(uncopied.Lean(graph.num_ranks())),
      whole(uncopied.Lean(1))};
  if (!copies.empty()) {
    levels.push_back(memory.MinMemory());
    levels.push_back(memory.Copied(copies.back()));
    levels.push_back(memory.Copied(copies[copies.size() / 2]));
  }
  for (const double share : kShares) {
    levels.push_back(whole(uncopied.Level(share)));
  }
  const auto modules = static_cast<int32_t>(graph.module_names().size());
  for (int32_t m = 0; m < modules && modules > 1; ++m) {
    MemorySelection selection = memory.KeepEverything();
    for (const StagePairId id : selection.ids()) {
      if (graph.task(memory.pairs[id].forward).module == ModuleId(m)) {
        selection[id] = min_memory[id];
      }
    }
    levels.push_back(std::move(selection));
  }
  return levels;
}

class DipStrategy : public Strategy, public SearchesBySeed {
 public:
  explicit DipStrategy(const DipOptions& options) : options_(options) {}

  absl::string_view name() const override {
    const bool interleave = options_.interleave;
    const bool reorder = options_.reorder;
    const bool memory = options_.memory;
    if (interleave && reorder) return memory ? "dip" : "dip-order";
    if (interleave && !memory) return "dip-interleave";
    if (!interleave && !reorder && !memory) return "dip-partition";
    return "dip-custom";
  }
  bool split_backward() const override { return false; }
  bool searches() const override { return options_.reorder; }
  bool chooses_memory() const override {
    return options_.memory && options_.interleave;
  }

  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token&) const override {
    return partition::SeparatedPartition(costs.job(), costs, sample);
  }

  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override {
    SearchResult result;
    result.lower_bound = LowerBound(graph);
    result.evaluations = 1;
    RankOrders orders;
    if (options_.interleave) {
      const FlatGraph flat(graph);
      PIPELOOM_ASSIGN_OR_RETURN(
          orders, Search(graph, flat, nullptr, seed, budget, nullptr,
                         &result.evaluations));
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(
          orders, InterleavedOrders(VirtualPipeline(graph, partition)));
    }
    PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                              TimeBaseline(graph, std::move(orders)));
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(graph, result.schedule));
    result.proven_optimal = result.schedule.step_time() == result.lower_bound;
    return result;
  }

  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const StepMemory& memory, const Partition&,
      uint64_t seed, const SearchBudget& budget) const override {
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    MemorySchedule answer;
    SearchResult& found = answer.found;
    PIPELOOM_ASSIGN_OR_RETURN(
        const FlatGraph flat,
        InterleavingGraph(graph, memory, budget, &found.evaluations));
    SearchBudget rest = budget;
    rest.max_evaluations -= found.evaluations;
    int64_t evaluations = 0;
    PIPELOOM_ASSIGN_OR_RETURN(RankOrders orders,
                              Search(graph, flat, &memory, seed, rest,
                                     &answer.selection, &evaluations));
    found.evaluations += evaluations;
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(graph, memory, answer.selection));
    PIPELOOM_ASSIGN_OR_RETURN(found.schedule,
                              TimeSchedule(chosen, std::move(orders)));
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(chosen, found.schedule));
    // The bound for any memory choice.
    found.lower_bound = LowerBound(graph);
    found.proven_optimal = found.schedule.step_time() == found.lower_bound;
    return answer;
  }

 private:
  // Returns the graph to interleave: with min-memory choices, or with the level
  // whose schedule in the order of the batch is fastest with its best choices.
  // Min-memory needs no evaluation, and is used if nothing better is found
  // within the budget.
  absl::StatusOr<FlatGraph> InterleavingGraph(const StageGraph& graph,
                                              const StepMemory& memory,
                                              const SearchBudget& budget,
                                              int64_t* evaluations) const {
    const std::vector<MemorySelection> levels = Levels(graph, memory);
    PIPELOOM_ASSIGN_OR_RETURN(const StageGraph min_memory,
                              partition::ApplyMemory(graph, memory, levels[0]));
    FlatGraph best(min_memory);
    // If it cannot run, levels with copies might: they save more, or need more
    // room on their way.
    for (size_t i = 1; i < levels.size() && !DualQueue(best).CanRun(); ++i) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const StageGraph level,
          partition::ApplyMemory(graph, memory, levels[i]));
      FlatGraph flat(level);
      if (DualQueue(flat).CanRun()) best = std::move(flat);
    }
    if (options_.min_memory_only || !memory.has_choices()) return best;
    const SegmentUnits units(graph);
    MemoryOptimizer optimizer(graph, memory);
    int64_t best_time = kNoLimit;
    for (const MemorySelection& selection : levels) {
      // One evaluation is left for the search itself.
      if (budget.Exhausted(*evaluations + 1)) break;
      PIPELOOM_ASSIGN_OR_RETURN(
          const StageGraph levelled,
          partition::ApplyMemory(graph, memory, selection));
      FlatGraph flat(levelled);
      SegmentOrderEvaluator evaluator(flat, units, &optimizer);
      if (!evaluator.CanRun()) continue;
      std::vector<int32_t> order(static_cast<size_t>(units.num_units));
      std::iota(order.begin(), order.end(), 0);
      ++*evaluations;
      const int64_t time = evaluator.Evaluate(order);
      if (time < best_time) {
        best_time = time;
        best = std::move(flat);
      }
    }
    return best;
  }

  // Returns the best orders and, with `memory`, sets the choices for them.
  // `graph` is the one that memory choices are made for, `flat` the one that is
  // interleaved.
  absl::StatusOr<RankOrders> Search(const StageGraph& graph,
                                    const FlatGraph& flat,
                                    const StepMemory* memory, uint64_t seed,
                                    const SearchBudget& budget,
                                    MemorySelection* selection,
                                    int64_t* evaluations) const {
    const SegmentUnits units(graph);
    DualQueue queue(flat);
    if (!queue.CanRun()) return DescribeShortage(graph, queue.shortage());
    const SegmentOrderResult best = SearchSegmentOrder(
        graph, flat, memory, units, seed, budget, {.search = options_.reorder});
    *evaluations = best.evaluations;
    queue.set_reserve(best.reserve);
    queue.Run(SegmentPriorities(units, best.order));
    RankOrders orders = OrdersOf(flat, queue.sequence());
    if (memory == nullptr) return orders;
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    MemoryOptimizer optimizer(graph, *memory);
    if (optimizer.Optimize(orders) >= kNoLimit) {
      return absl::ResourceExhaustedError(
          "no memory choice fits the order that fits with the choices of least "
          "memory");
    }
    *selection = optimizer.selection();
    return orders;
  }

  DipOptions options_;
};

}  // namespace

std::unique_ptr<Strategy> MakeDip(const DipOptions& options) {
  return std::make_unique<DipStrategy>(options);
}

std::unique_ptr<Strategy> MakeDip() { return MakeDip(DipOptions{}); }

std::unique_ptr<Strategy> MakeDipPartition() {
  return MakeDip({.interleave = false, .reorder = false, .memory = false});
}

std::unique_ptr<Strategy> MakeDipInterleave() {
  return MakeDip({.interleave = true, .reorder = false, .memory = false});
}

std::unique_ptr<Strategy> MakeDipOrder() {
  return MakeDip({.interleave = true, .reorder = true, .memory = false});
}

}  // namespace pipeloom::planner
