// The bound of the time that a memory limit costs a rank while a pipeline fills
// and drains.
//
// In the first x ns of a step a rank can only work on tasks whose chains before
// them are done by then (head < x), and on no more of them than memory holds.
// Let S be the tasks begun by x, and D those of S that may be done (head +
// duration <= x). Then
//   sum of alloc over S - sum of free over D <= limit - static memory,
// and S holds with a task also its producers. So the work done by x is at most
//   f(x) = max over such S of sum of min(duration, x - head),
// and the rank idles at least x - f(x). The same holds for the last y ns with
// time reversed: tails for heads, alloc and free exchanged, and the limit less
// the bytes that the step leaves behind. If x + y is no more than a known lower
// bound, the two spans do not overlap in any schedule, and
//   step time >= load + (x - f(x)) + (y - g(y)).
// f is bounded from above: of a task's producers on its rank only the one with
// the latest head is kept, and the limit is priced (Lagrange: for any price the
// relaxed maximum is no less than the true one); the best price is found by
// cutting planes.
//
// Example: V-shaped chunks, two a rank, passes of 0.5 on 4 ranks, 8
// microbatches. The last rank's first backward starts at 5.5 at the earliest;
// with 6 activations a rank it has worked 6 x 0.5 by then, and its load is 24:
// no schedule beats 24 + 5.5 - 3 = 26.5, and V-Half takes exactly that.
//
// Cost: O(tasks of the rank x prices x points), with about 6 prices; there are
// `points` moments in each direction, chosen among the heads of tasks that take
// no memory.
#ifndef PIPELOOM_PLANNER_BOUNDS_MEMORY_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_MEMORY_BOUND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Returns the bound in ns; 0 if no limit binds. `head` and `tail`, indexed by
// task, are lower bounds of the time before its start and after its end;
// `known` is a lower bound of the step time.
int64_t MemoryBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                    absl::Span<const int64_t> tail, int64_t known,
                    int32_t points);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_MEMORY_BOUND_H_
