// Which work goes first: orders of (microbatch, module) units as priorities of
// the list scheduler. All passes of a unit share its position, as the segments
// of one modality in one microbatch have equal structure (DIP section 5.1).
#ifndef PIPELOOM_PLANNER_MOVES_ORDER_SEARCH_H_
#define PIPELOOM_PLANNER_MOVES_ORDER_SEARCH_H_

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "ir/plan/stage_graph.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/core/sort_by_key.h"

namespace pipeloom::planner {

// The units of a graph and, by task, what priority rules are made of.
struct OrderUnits {
  explicit OrderUnits(const StageGraph& graph);

  int32_t num_units() const { return static_cast<int32_t>(load.size()); }

  std::vector<int32_t> unit{};   // By task.
  std::vector<int32_t> chunk{};  // By task: its rank among the forwards of its
                                 // microbatch there; backwards mirrored.
  std::vector<int32_t> microbatch{};  // By unit.
  std::vector<int32_t> module{};      // By unit.
  std::vector<int64_t> load{};        // By unit: the sum of its durations.
  // The tasks of a unit and chunk, by id: those of unit u, chunk c are
  // unit_task[unit_offset[k] .. unit_offset[k + 1]) with
  // k = u * num_chunks + num_chunks - 1 - c, so later chunks come first.
  std::vector<int32_t> unit_task{};
  std::vector<int32_t> unit_offset{};
  std::vector<int32_t> by_tail{};  // Tasks, the longest chain after it first.
  // By microbatch: the work of the rank that it keeps busy longest.
  std::vector<int64_t> period{};
  int32_t num_chunks = 1;
};

// How positions of units become task priorities.
enum class PriorityRule : uint8_t {
  kUnit,      // By the unit's position; then by chunk, later chunks first.
  kGrouped,   // Megatron's: groups of p positions, chunk by chunk in a group.
  kBreadth,   // Chunk by chunk; the unit's position in a chunk.
  kTail,      // Longest chain first; positions do not matter.
  kPeriodic,  // By target time: see Pattern.
  kDue,       // Exactly in the order of target times, memory or not: no list
              // scheduling, so nothing is brought forward into a gap.
};
inline bool IsPattern(PriorityRule rule) {
  return rule == PriorityRule::kPeriodic || rule == PriorityRule::kDue;
}

// A repeating pattern, as the V schedules of zero-bubble pipelines are built
// from (Qi et al., 2024, "Pipeline parallelism with controllable memory"), for
// unequal work: microbatch after microbatch starts once the busiest rank's
// work on the former, times `period`, is over; in it a task is due when its
// producers, slowed down by `stretch` of their pass and chunk, are done.
// Stretching spreads forwards and backwards so that a microbatch holds its
// memory for less or more of the time.
struct Pattern {
  double period = 1;
  // By pass (forward, backward) and chunk; the last counts for all beyond.
  static constexpr int kChunks = 4;
  double stretch[2][kChunks] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  // By chunk: a weight gradient is due so many durations of its backward after
  // that became due.
  double lag[kChunks] = {1, 1, 1, 1};
};

// A full set of choices of the list scheduler.
struct OrderChoice {
  std::vector<int32_t> order{};  // Units, first to last.
  PriorityRule rule = PriorityRule::kUnit;
  Prefer prefer = Prefer::kBackward;
  double patience = 0;
  // Scheduled with Idealised(graph), timed with the true costs.
  bool idealised = false;
  Pattern pattern{};  // Of kPeriodic.
  // Of the rank's capacity (or, without limit, of all it could hold).
  double capacity_ratio = 1;
};

// Evaluates choices. One per thread.
class OrderEvaluator {
 public:
  // Keeps references.
  OrderEvaluator(const FlatGraph& graph, const OrderUnits& units);

  // Step time in ns; kNoLimit when a kDue order does not keep the memory limit,
  // or when list scheduling saw that the time is `give_up` or more.
  int64_t Evaluate(const OrderChoice& choice, int64_t give_up = kNoLimit);
  // Of the last Evaluate; see ListScheduler::sequence.
  absl::Span<const int32_t> sequence() const {
    return in_due_order_ ? absl::MakeConstSpan(task_order_)
                         : scheduler_.sequence();
  }
  // For list schedules beside; Evaluate and they share one sequence.
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
  std::vector<int64_t> held_{};      // By rank.
  std::vector<int32_t> task_order_;  // All tasks, best first.
  std::vector<int64_t> due_;         // By task, for patterns.
  std::vector<int64_t> offset_;      // By microbatch, for kPeriodic.
  KeySorter sorter_;
  std::vector<int64_t> full_capacity_;
  std::vector<int64_t> capacity_;
};

// One of the pattern's numbers drawn anew.
void PerturbPattern(Pattern* pattern, Random& random);

// A random small change: a unit moved or two swapped, now and then another
// preference, patience or capacity.
void Perturb(OrderChoice* choice, Random& random);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_ORDER_SEARCH_H_
