// Orders of (microbatch, module) units, which serve as priorities of the list
// scheduler. All passes of a unit share its position, as the segments of one
// modality in one microbatch have equal structure (DIP section 5.1).
#ifndef PIPELOOM_PLANNER_MOVES_ORDER_SEARCH_H_
#define PIPELOOM_PLANNER_MOVES_ORDER_SEARCH_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "ir/plan/stage_graph.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/core/sort_by_key.h"

namespace pipeloom::planner {

// The units of a graph, and the values by task that priority rules use.
struct OrderUnits {
  explicit OrderUnits(const StageGraph& graph);

  int32_t num_units() const { return static_cast<int32_t>(load.size()); }
  // Returns whether no unit has more work than another.
  bool HasEqualLoads() const {
    return std::all_of(load.begin(), load.end(),
                       [&](int64_t l) { return l == load.front(); });
  }

  std::vector<int32_t> unit{};  // Indexed by task.
  // Indexed by task: its place among the forwards of its microbatch on its
  // rank; backwards are mirrored.
  std::vector<int32_t> chunk{};
  std::vector<int32_t> microbatch{};  // Indexed by unit.
  std::vector<int32_t> module{};      // Indexed by unit.
  // Indexed by unit: the sum of its durations, ns.
  std::vector<int64_t> load{};
  // The tasks of each unit and chunk, by id. Those of unit u and chunk c are
  // unit_task[unit_offset[k] .. unit_offset[k + 1]) with k = u * num_chunks +
  // num_chunks - 1 - c, so later chunks come first.
  std::vector<int32_t> unit_task{};
  std::vector<int32_t> unit_offset{};
  // Tasks, the one with the longest chain from it on first.
  std::vector<int32_t> by_tail{};
  // Indexed by microbatch: the work (ns) of the rank that it keeps busy
  // longest.
  std::vector<int64_t> period{};
  int32_t num_chunks = 1;
};

// How positions of units become priorities of tasks.
enum class PriorityRule : uint8_t {
  kUnit,      // Unit's position, then chunk, later chunks first.
  kGrouped,   // Megatron's: groups of p positions, chunk by chunk in a group.
  kBreadth,   // Chunk by chunk; within a chunk by the unit's position.
  kTail,      // Longest chain first; positions do not matter.
  kPeriodic,  // Sorted by target time: see Pattern.
  // Exactly in the order of target times, whether memory allows it or not: no
  // list scheduling, so nothing is brought forward into a gap.
  kDue,
};
// Returns whether a rule uses OrderChoice::pattern.
inline bool IsPattern(PriorityRule rule) {
  return rule == PriorityRule::kPeriodic || rule == PriorityRule::kDue;
}

// A repeating pattern like those that the V schedules of zero-bubble pipelines
// are built from (Qi et al., 2024, "Pipeline parallelism with controllable
// memory"), but for unequal work. Each microbatch starts when the busiest
// rank's work on the one before, times `period`, is over. In it, a task is due
// when its producers, slowed down by `stretch` of their pass and chunk, are
// done. Stretching spreads forwards and backwards so that a microbatch holds
// its memory for less or more of the time.
struct Pattern {
  double period = 1;
  // Indexed by pass (forward, backward) and chunk; the last value holds for all
  // chunks beyond it.
  static constexpr int kChunks = 4;
  double stretch[2][kChunks] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  // Indexed by chunk: a weight gradient is due this many durations of its
  // backward after that backward became due.
  double lag[kChunks] = {1, 1, 1, 1};
};

// A full set of choices for the list scheduler.
struct OrderChoice {
  std::vector<int32_t> order{};  // Units, first to last.
  PriorityRule rule = PriorityRule::kUnit;
  Prefer prefer = Prefer::kBackward;
  double patience = 0;
  // Whether it is scheduled with Idealised(graph); it is timed with the true
  // costs.
  bool idealised = false;
  Pattern pattern{};  // For kPeriodic and kDue.
  // Share of the rank's capacity to use (without a limit: of all that it could
  // hold).
  double capacity_ratio = 1;
  // ListPolicy::reserve.
  double reserve = 0;
};

// Evaluates choices. Use one per thread.
class OrderEvaluator {
 public:
  // Keeps references to both.
  OrderEvaluator(const FlatGraph& graph, const OrderUnits& units);

  // Returns the step time in ns; kNoLimit if a kDue order does not keep the
  // memory limit, or if list scheduling saw that the time is `give_up` or more.
  int64_t Evaluate(const OrderChoice& choice, int64_t give_up = kNoLimit);
  // Returns the sequence of the last Evaluate; see ListScheduler::sequence.
  absl::Span<const int32_t> sequence() const {
    return in_due_order_ ? absl::MakeConstSpan(task_order_)
                         : scheduler_.sequence();
  }
  // Returns the scheduler for list schedules of the caller's own. It shares one
  // sequence with Evaluate.
  ListScheduler& scheduler() { return scheduler_; }

 private:
  void SetTargets(const OrderChoice& choice);
  void OrderByUnits(const OrderChoice& choice);
  int64_t TimeDueOrder();

  const FlatGraph* graph_;
  const OrderUnits* units_;
  ListScheduler scheduler_;
  Retimer retimer_;
  bool in_due_order_ = false;
  std::vector<int64_t> held_{};      // Indexed by rank.
  std::vector<int32_t> task_order_;  // All tasks, in descending priority.
  std::vector<int64_t> due_;         // Indexed by task, for patterns; ns.
  std::vector<int64_t> offset_;      // Indexed by microbatch, for patterns; ns.
  KeySorter sorter_;
  std::vector<int64_t> full_capacity_;
  std::vector<int64_t> capacity_;
};

// Redraws one of the pattern's numbers.
void PerturbPattern(Pattern* pattern, Random& random);

// Makes a random small change: moves a unit or swaps two, or at times changes
// preference, patience, capacity or pattern.
void Perturb(OrderChoice* choice, Random& random);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_ORDER_SEARCH_H_
