// What it costs the longest chain that other microbatches go the same way.
//
// Take a chain g of tasks, each waiting for the one before, and a stretch of it
// from task g(a) to g(b). Let other chains m, with no task in common, run over
// the same ranks along that stretch, task m(k) on the rank of g(k), each
// waiting for m(k - 1). Such as a giant clip among ordinary microbatches.
//
// Claim: every m makes the step longer than g's own chain by at least the least
// of m(a), m(b) and, over k from a to b - 1, m(k) or m(k + 1), one of the two
// chosen by k alone (durations all); these add up over all m, less a term at
// either end, below.
// Proof: on every rank of the stretch m(k) runs ahead of g(k) or behind it.
//  - Ahead at a: all such m(a) run before g(a), one by one, from the earliest
//    of their heads on. So g(a) starts later than its head h by their sum, less
//    the time by which h is later than the least head of an m(a).
//  - Behind at b: all such m(b) run after g(b), one by one, and a tail follows;
//    the same with tails.
//  - Else m overtakes: there is a k with m(k) behind g(k) and m(k + 1) ahead of
//    g(k + 1). All that overtake there run one by one on the rank of g(k) after
//    it has ended, and one by one on the rank of g(k + 1) before it starts. So
//    g waits for the sum of their m(k + 1) and the first m(k), or of their m(k)
//    and the last m(k + 1), with a transfer of theirs between, less its own
//    transfer.
// The delay at a, the waits at each k and the delay at b lie one behind another
// on g's way through the step, so they add up.
//
// Memory is ignored. The stretches tried are those around the first backward of
// g; the chains, some of the longest.
//
// An example: a clip with passes of 4 ms on 4 ranks forwards and of 8 ms back,
// 48 ms in all, and ten microbatches of 1 and 2 ms: 42 ms of work a rank, but
// no schedule is shorter than 58 ms.
//
// Cost: O(chains x microbatches x length of the chain), a few list schedules.
#ifndef PIPELOOM_PLANNER_BOUNDS_OVERTAKING_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_OVERTAKING_BOUND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// In ns; 0 for a graph without tasks. `head`, `tail`: by task, the longest
// chains before its start and after its end (ChainsOf).
int64_t OvertakingBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                        absl::Span<const int64_t> tail);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_OVERTAKING_BOUND_H_
