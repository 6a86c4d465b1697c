// The bound of the time that a rank loses because its first tasks come to it
// one after another over the same ranks (a pipeline fills), and its last ones
// leave in the same way.
//
// Let tasks t of rank r, the "jobs" of a route, each have a chain of producers
// of their own with one task on each rank of the route. The last rank of the
// route but one has the task directly before t, and so on; a(t) is the first
// task of the chain. In the first x ns of any schedule, let r work for b(t) on
// each t of a set S.
//
// Claim: for every k in S
//   x >= h + l(k) + b(k) + sum over the others i of S of m(i),
// where h is the earliest head of any a(t), l(k) the work of k's chain without
// delays, and m(i) the least work of i on any rank of the route, b(i) included.
// Proof: look at i and k on the ranks of the route, in its order. If i runs
// ahead of k on the first rank, a(k) starts m(i) later because of it; that adds
// up over all such i. If i runs behind k on r, r works on it after k; that adds
// up too. Otherwise i overtakes k: there are two neighbouring ranks such that k
// runs ahead on the former and i on the latter. Then i runs on the latter rank
// after k ended on the former and before it starts on the latter, and k waits;
// waits for several such i add up, as one rank runs them one by one. The three
// kinds do not overlap on the time line of k's chain. (A task that r has not
// ended by x counts with the part that it has done.)
//
// So with K the job of S with the largest l, sum of m over S <= x - h - l(K):
// among jobs no further than K, the most work under this constraint is a
// fractional knapsack. Tasks on r that are no jobs count as far as their heads
// allow. The largest value over all K bounds the work done by x, and x less it
// bounds the idle time; with time reversed the same holds for the step's last y
// ns. If x + y is no more than a known lower bound of the step time,
//   step time >= load + idle(x) + idle(y).
//
// Example: encoders of 1 to 4 ms on 8 ranks, one microbatch each. The last
// rank's first task can start at 7 ms, the others at 14, 21 and 28 ms, and from
// then on heads alone show no more idle time; but the rank that makes them one
// by one cannot send each at its head. Memory is ignored.
//
// Cost: O(ranks x points x jobs^2) at worst, with some chains walked once.
#ifndef PIPELOOM_PLANNER_BOUNDS_RAMP_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_RAMP_BOUND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Returns the bound in ns. `head` and `tail`, indexed by task, are lower bounds
// of the time before its start and after its end; `known` is a lower bound of
// the step time; `points` is the number of moments looked at for each rank and
// direction.
int64_t RampBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                  absl::Span<const int64_t> tail, int64_t known,
                  int32_t points);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_RAMP_BOUND_H_
