// One step of a measured run: which tasks of the traces belong to it, and what
// each of them waited for.
#ifndef PIPELOOM_TRACE_TRACE_ITERATION_H_
#define PIPELOOM_TRACE_TRACE_ITERATION_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trace/trace_events.h"

namespace pipeloom::trace {

// A tensor that a task waited for: indices of the producer and the consumer.
using TraceInput = std::pair<int32_t, int32_t>;

struct TraceIteration {
  std::vector<TraceTask> tasks{};    // Sorted by rank and start.
  std::vector<TraceInput> inputs{};  // Each once.
  int32_t step = -1;                 // The training's; -1: tasks do not say it.
  int32_t nth = 0;                   // Counted in its step.
  int32_t index = 0;                 // Counted in all steps.
  int32_t count = 0;                 // How many the traces have.
};

// Returns iteration `index` of those that `tasks` have, counted from 0; -1: the
// last complete one. Tasks that say their step are of one iteration only if it
// is the same: steps may have other tasks. InvalidArgument: there is no such
// iteration, or it names what is missing in it. O(n log n) for n tasks.
absl::StatusOr<TraceIteration> ChooseIteration(std::vector<TraceTask> tasks,
                                               int32_t index);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_TRACE_ITERATION_H_
