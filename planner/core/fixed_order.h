// One order of all tasks, timed again and again with other durations: for
// judging a plan under jitter, or one order under many memory choices.
//
// The order is compiled once: tasks are renumbered by their place in it, the
// task before on the same rank becomes one more producer, and producers that
// this makes redundant are dropped. A timing is then one sweep over arrays in
// sequence. A batch times kLanes sets of durations at once: the sweep reads the
// structure once and keeps a vector of ends for each task.
//
// Times are integers held in doubles, which is exact below 2^53 ns (104 days);
// ends equal those of Retimer to the nanosecond.
//
// Cost for each task in one thread: about 2 ns alone, 0.3 ns for each set of a
// batch (docs/results.md). Timing is const and needs a Workspace; use one per
// thread.
#ifndef PIPELOOM_PLANNER_CORE_FIXED_ORDER_H_
#define PIPELOOM_PLANNER_CORE_FIXED_ORDER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// A compiled order.
class FixedOrder {
 public:
  static constexpr int32_t kLanes = 16;

  // Durations of one set (ns), indexed by place in the order.
  struct Durations {
    std::vector<double> by_place{};
  };
  // Durations of kLanes sets (ns); lane l of place p is at [p * kLanes + l].
  struct BatchDurations {
    std::vector<double> by_place{};
  };
  // Ends (ns) of the last timing that used it, indexed by place.
  struct Workspace {
    std::vector<double> end{};
  };

  // Compiles `sequence`; does not keep the graph. REQUIRES: `sequence` has
  // every task of the graph once, producers before consumers; all times of the
  // graph and of all durations given later sum to less than 2^53 ns.
  FixedOrder(const FlatGraph& graph, absl::Span<const int32_t> sequence);

  int32_t num_tasks() const { return static_cast<int32_t>(task_at_.size()); }

  // Arranges durations by place; `by_task` has one for every task, in ns.
  // O(tasks).
  void Arrange(absl::Span<const int64_t> by_task, Durations& durations) const;
  // Does the same for one lane; the other lanes keep their values, at first 0.
  void Arrange(absl::Span<const int64_t> by_task, int32_t lane,
               BatchDurations& durations) const;
  // Arranges the same durations for all lanes.
  void ArrangeAll(absl::Span<const int64_t> by_task,
                  BatchDurations& durations) const;
  // Sets the duration (ns) of one task in one lane of arranged ones.
  void Set(int32_t task, int64_t duration, int32_t lane,
           BatchDurations& durations) const {
    durations.by_place[static_cast<size_t>(place_of_[task]) * kLanes + lane] =
        static_cast<double>(duration);
  }
  // Arranges all lanes from rows indexed by task: lane l of task t is at [t *
  // kLanes + l].
  void ArrangeRows(absl::Span<const double> by_task,
                   BatchDurations& durations) const;

  // Returns the step time in ns if every task starts as early as it can.
  int64_t Time(const Durations& durations, Workspace& workspace) const;
  // Returns the step times in ns, indexed by lane.
  std::array<int64_t, kLanes> Time(const BatchDurations& durations,
                                   Workspace& workspace) const;

 private:
  struct Input {
    double delay = 0;
    int32_t place = 0;  // num_tasks for no producer, which ends at time 0.
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

  std::vector<int32_t> task_at_;   // Indexed by place.
  std::vector<int32_t> place_of_;  // Indexed by task.
  std::vector<Record> records_;    // Indexed by place.
  std::vector<Input> more_;
  std::vector<RankEnd> rank_ends_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_FIXED_ORDER_H_
