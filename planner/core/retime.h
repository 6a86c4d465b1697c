// Times of a fixed order in one forward sweep over a topological sequence of
// the tasks. Search loops call this instead of a simulation.
//
// Each task is one 32-byte record with its first two producers; a sweep reads
// the records in sequence and writes one end time each. The rare tasks with
// more producers take a slow path. O(tasks + edges).
#ifndef PIPELOOM_PLANNER_CORE_RETIME_H_
#define PIPELOOM_PLANNER_CORE_RETIME_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Times sequences of one graph. Use one per thread.
class Retimer {
 public:
  // Keeps a reference to `graph`. REQUIRES: all times of the graph sum to less
  // than 2^62 ns.
  explicit Retimer(const FlatGraph& graph);

  // Returns the step time in ns when every rank runs its tasks in the order of
  // `sequence`, each as early as possible. Sets end(). REQUIRES: `sequence` has
  // every task once, producers before consumers.
  int64_t Retime(absl::Span<const int32_t> sequence);

  // Takes the graph's durations, which have changed. Costs less than a Retime.
  void TakeDurations();

  // Ends and starts of the last Retime in ns; the former indexed by task.
  absl::Span<const int64_t> end() const {
    return absl::MakeConstSpan(end_).first(
        static_cast<size_t>(graph_->num_tasks));
  }
  int64_t start(int32_t task) const {
    return end_[task] - graph_->duration[task];
  }

 private:
  struct Record {
    int64_t duration = 0;
    int32_t rank = 0;
    // Producers; num_tasks for none, which ends at time 0.
    int32_t first = 0;
    int32_t second = 0;
    int32_t more = 0;  // Nonzero if there are others.
    int32_t first_delay = 0;
    int32_t second_delay = 0;
  };
  static_assert(sizeof(Record) == 32);

  const FlatGraph* graph_;
  std::vector<Record> records_;
  std::vector<int64_t> end_;  // Indexed by task; one more for "no producer".
  std::vector<int64_t> free_at_;  // Indexed by rank.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_RETIME_H_
