// The bound of the time that the longest chain loses to other microbatches that
// go the same way.
//
// Take a chain g of tasks, each waiting for the one before, and a stretch of it
// from task g(a) to g(b). Let other chains m, with no task in common, run over
// the same ranks along that stretch, task m(k) on the rank of g(k), each
// waiting for m(k - 1). An example is a dominant microbatch among ordinary
// ones.
//
// Claim: every m makes the step longer than g's own chain by at least the
// minimum of m(a), m(b) and, over k from a to b - 1, m(k) or m(k + 1), where
// one of the two is chosen by k alone (all of these are durations). These
// minima add up over all m, less a term at either end, see below. Proof: on
// every rank of the stretch m(k) runs ahead of g(k) or behind it.
// - Ahead at a: all such m(a) run before g(a), one by one, from the earliest of
//   their heads on. So g(a) starts later than its head h by their sum, less the
//   time by which h is later than the least head of an m(a).
// - Behind at b: all such m(b) run after g(b), one by one, and a tail follows;
//   the rest is as above with tails.
// - Otherwise m overtakes: there is a k with m(k) behind g(k) and m(k + 1)
//   ahead of g(k + 1). All that overtake there run one by one on the rank of
//   g(k) after it has ended, and one by one on the rank of g(k + 1) before it
//   starts. So g waits for the sum of their m(k + 1) and the first m(k), or of
//   their m(k) and the last m(k + 1), with one of their transfers in between,
//   less its own transfer.
// The delay at a, the waits at each k and the delay at b follow one another on
// g's way through the step, so they add up.
//
// Memory is ignored. The stretches tried are those around the first backward of
// g; the chains tried are some of the longest.
//
// Example: a clip with passes of 4 ms on 4 ranks forwards and of 8 ms
// backwards, 48 ms in all, and ten microbatches of 1 and 2 ms: each rank has 42
// ms of work, but no schedule is shorter than 58 ms.
//
// Cost: O(chains x microbatches x length of the chain), a few list schedules.
#ifndef PIPELOOM_PLANNER_BOUNDS_OVERTAKING_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_OVERTAKING_BOUND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Returns the bound in ns; 0 for a graph without tasks. `head` and `tail`,
// indexed by task, are the longest chains before its start and after its end
// (ChainsOf).
int64_t OvertakingBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                        absl::Span<const int64_t> tail);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_OVERTAKING_BOUND_H_
