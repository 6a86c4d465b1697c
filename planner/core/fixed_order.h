// One order of all tasks, timed again and again with other durations: what
// judges a plan under jitter, or one order under many memory choices.
//
// The order is compiled once: tasks are renumbered by their place in it, the
// task before on the same rank becomes one more producer, and producers that
// this makes superfluous are dropped. A timing is then one sweep over arrays
// in sequence. A batch times kLanes sets of durations at once: the sweep reads
// the structure once and keeps a vector of ends for each task.
//
// Times are integers held in doubles, which is exact below 2^53 ns (104 days);
// ends equal those of Retimer to the nanosecond.
//
// Cost a task, one thread: about 2 ns alone, 0.3 ns for each set of a batch
// (docs/results.md). Timing is const and needs a Workspace, one a thread.
#ifndef PIPELOOM_PLANNER_CORE_FIXED_ORDER_H_
#define PIPELOOM_PLANNER_CORE_FIXED_ORDER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

class FixedOrder {
 public:
  static constexpr int32_t kLanes = 16;

  // Durations of one set, arranged by place in the order.
  struct Durations {
    std::vector<double> by_place{};
  };
  // Those of kLanes sets; lane l of place p is at [p * kLanes + l].
  struct BatchDurations {
    std::vector<double> by_place{};
  };
  // Ends by place, of the last timing that used it.
  struct Workspace {
    std::vector<double> end{};
  };

  // REQUIRES: `sequence` has every task of the graph once, producers before
  // consumers; all times of the graph, and of all durations given later,
  // together stay below 2^53 ns. The graph is not kept.
  FixedOrder(const FlatGraph& graph, absl::Span<const int32_t> sequence);

  int32_t num_tasks() const { return static_cast<int32_t>(task_at_.size()); }

  // `by_task`: a duration in ns for every task. O(tasks).
  void Arrange(absl::Span<const int64_t> by_task, Durations& durations) const;
  // The same into one lane; the other lanes stay as they are, 0 at first.
  void Arrange(absl::Span<const int64_t> by_task, int32_t lane,
               BatchDurations& durations) const;
  // All lanes from rows by task: lane l of task t is at [t * kLanes + l].
  void ArrangeRows(absl::Span<const double> by_task,
                   BatchDurations& durations) const;

  // The step time in ns when every task starts as early as it can.
  int64_t Time(const Durations& durations, Workspace& workspace) const;
  // By lane.
  std::array<int64_t, kLanes> Time(const BatchDurations& durations,
                                   Workspace& workspace) const;

 private:
  struct Input {
    double delay = 0;
    int32_t place = 0;  // num_tasks: nobody, who ends at time 0.
  };
  struct Record {
    double first_delay = 0;
    double second_delay = 0;
    int32_t first = 0;
    int32_t second = 0;
    int32_t more_begin = 0;  // Further inputs: more_[more_begin, more_end).
    int32_t more_end = 0;
  };
  static_assert(sizeof(Record) == 32);
  struct RankEnd {
    int32_t place = 0;
    double epilogue = 0;
  };

  template <int32_t kWidth>
  void Sweep(const double* durations, double* end) const;
  void SweepBatch(const double* durations, double* end) const;
#ifdef __x86_64__
  void SweepBatchAvx2(const double* durations, double* end) const;
#endif

  std::vector<int32_t> task_at_;  // By place.
  std::vector<Record> records_;   // By place.
  std::vector<Input> more_;
  std::vector<RankEnd> rank_ends_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_FIXED_ORDER_H_
