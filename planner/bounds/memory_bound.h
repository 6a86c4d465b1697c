// What a memory limit costs a rank while a pipeline fills and drains.
//
// In the first x ns of a step a rank can only work on tasks whose chains ahead
// are done by then (head < x), and on no more of them than memory holds: of
// the tasks S begun by x and those D of S that may be done (head + duration <=
// x),
//   sum of alloc over S - sum of free over D <= limit - static memory,
// and S holds with a task also its producers. So the work done by x is at most
//   f(x) = max over such S of sum of min(duration, x - head),
// and the rank idles at least x - f(x). Read backwards in time the same holds
// for the last y ns: tails for heads, alloc and free exchanged, the limit less
// what the step leaves behind. Where x + y is no more than a known lower bound,
// the two spans do not overlap in any schedule, and
//   step time >= load + (x - f(x)) + (y - g(y)).
// f is bounded from above: of a task's producers on its rank only the one with
// the latest head is kept, and the limit is priced (Lagrange: for any price
// the relaxed maximum is no less than the true one); the best price is found
// by cutting planes.
//
// An example: V-shaped chunks, two a rank, passes of 0.5 on 4 ranks, 8
// microbatches. The last rank's first backward starts at 5.5 at best; with 6
// activations a rank it worked 6 x 0.5 by then, and its load is 24: no schedule
// beats 24 + 5.5 - 3 = 26.5, and V-Half needs just that.
//
// Cost: O(tasks of the rank x prices x points), about 6 prices; `points` a
// direction, chosen among the heads of tasks that take none.
#ifndef PIPELOOM_PLANNER_BOUNDS_MEMORY_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_MEMORY_BOUND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// In ns; 0 where no limit binds. `head`, `tail`: by task, lower bounds of the
// time before its start and after its end. `known`: a lower bound of the step
// time.
int64_t MemoryBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                    absl::Span<const int64_t> tail, int64_t known,
                    int32_t points);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_MEMORY_BOUND_H_
