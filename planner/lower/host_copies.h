// Places copies of activations to the host and back in the program of a rank.
#ifndef PIPELOOM_PLANNER_LOWER_HOST_COPIES_H_
#define PIPELOOM_PLANNER_LOWER_HOST_COPIES_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Activations of a forward task that wait on the host until its backward: all
// or part of what the task keeps (Task::alloc).
struct HostCopy {
  TaskId task{};
  Bytes payload{};
  // Time of the copy in each direction. 0: unknown; the copy then comes back
  // one task early.
  Duration time{};
  bool operator==(const HostCopy&) const = default;
};

// A rank's program with the places where instructions may be inserted before a
// task.
struct LoweredRank {
  std::vector<Instruction> instructions{};
  // Indexed by position in the rank's order: the first instruction of the gap
  // before the task, after the frees of the task before it.
  std::vector<size_t> gaps{};
};

// Returns InvalidArgument for a copy of a task that is not a forward task, of
// no bytes or more than the task keeps, or of a task listed twice. O(tasks).
absl::Status CheckHostCopies(const StageGraph& graph,
                             absl::Span<const HostCopy> copies);

// Returns the most bytes that a program holds at each position of the rank's
// order: from the gap before the task until it has run.
// Copies to the host are not counted. O(instructions).
std::vector<Bytes> MostBefore(const StageGraph& graph, RankId rank,
                              const LoweredRank& program);

// Inserts the copies of one rank into its program. InvalidArgument: a copied
// task has no backward on its rank.
absl::Status PlaceHostCopies(const StageGraph& graph, RankId rank,
                             const std::vector<TaskId>& order,
                             const Schedule& schedule,
                             absl::Span<const HostCopy> host_copies,
                             LoweredRank* program);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LOWER_HOST_COPIES_H_
