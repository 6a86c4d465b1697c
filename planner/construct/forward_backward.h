// Forward-backward improvement of a schedule. Its tasks are pushed as far to
// the right as they go, those that end last first, by list scheduling the graph
// in reverse; then to the left again, those that could start first first; this
// is repeated as long as the step gets shorter. Gaps that a list schedule
// leaves in its middle move to where another task fits.
//
// A classic method of resource-constrained scheduling (K. Y. Li and R. J.
// Willis, "An iterative scheduling technique for resource-constrained project
// scheduling", EJOR 56, 1992; A. Tormos and A. Lova, Annals of OR 102, 2001).
// On pipelines whose microbatches differ, a few passes are worth thousands of
// moves.
//
// Memory limits are kept in both directions: in reverse a task takes what it
// used to give back. A pass costs one list schedule.
#ifndef PIPELOOM_PLANNER_CONSTRUCT_FORWARD_BACKWARD_H_
#define PIPELOOM_PLANNER_CONSTRUCT_FORWARD_BACKWARD_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/core/sort_by_key.h"

namespace pipeloom::planner {

// Returns the graph with time running backwards: edges are turned round, the
// bytes that a task takes and gives back are exchanged, and capacities are
// reduced by the bytes held for good at the end. Its task sequences, read
// backwards, are those of `graph`.
FlatGraph Reversed(const FlatGraph& graph);

// How the passes list tasks.
struct SweepStyle {
  double patience = 0;        // ListPolicy::patience.
  bool keeps_takers = false;  // ListPolicy::keeps_takers.
};

// Improves schedules of one graph. Use one per thread.
class ForwardBackward {
 public:
  // Keeps a reference to `graph`.
  explicit ForwardBackward(const FlatGraph& graph);

  // Returns whether microbatches can run one after another in both directions;
  // only then may Improve be called.
  bool can_run() const { return forward_.CanRun() && backward_.CanRun(); }

  // Returns the best step time found from `sequence` on, in ns, in at most
  // `rounds` rounds of a pass to the right and one to the left; ends with the
  // first round that gains nothing. Never worse than `sequence` itself.
  // REQUIRES: can_run(), and `sequence` is a topological sequence of all tasks
  // that keeps the limits.
  // Stops early where it falls so far behind the step time `to_beat` (ns) that
  // more rounds would not catch up.
  int64_t Improve(absl::Span<const int32_t> sequence, int32_t rounds,
                  const SweepStyle& style = {}, int64_t to_beat = kNoLimit);

  // Returns the best sequence of the last Improve, and the number of list
  // schedules made.
  absl::Span<const int32_t> sequence() const { return sequence_; }
  int64_t evaluations() const { return evaluations_; }

 private:
  // Lists tasks in the order of order_.
  int64_t Run(const SweepStyle& style, ListScheduler& scheduler) const;
  void Offer(int64_t time, absl::Span<const int32_t> sequence);

  const FlatGraph* graph_;
  FlatGraph reversed_;
  ListScheduler forward_;
  ListScheduler backward_;
  Retimer retimer_;
  std::vector<int64_t> key_;      // Indexed by task; the least goes first.
  std::vector<int32_t> order_{};  // Tasks as a priority list.
  KeySorter sorter_;
  std::vector<int32_t> mirrored_;
  int64_t time_ = 0;
  std::vector<int32_t> sequence_;
  int64_t evaluations_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CONSTRUCT_FORWARD_BACKWARD_H_
