// The bound of the bytes x time that a rank's memory has for a step.
//
// Bytes that a task takes are held until another gives them back, at the
// earliest after the longest chain between the two. Per rank, the sum of bytes
// x that time over all of them must fit under the limit:
//   area <= limit x step time - what cannot be used at both ends,
// as by x ns after the begin only tasks with head <= x have taken bytes, and no
// more of them than the rank can run by then, one at a time; and in the last y
// ns only bytes are held whose givers have tail < y and can run by the end.
// Which giver is
// paired with which taker does not matter for the sum (bytes x ends given back
// less bytes x starts), so they are paired nested, which has long chains.
//
// Example: 8 ranks, four vee chunks each, passes of 0.25 ms, 19 microbatches, 8
// activations a rank. Chunks are held for 136 passes a microbatch in all, so a
// microbatch needs 17 passes of the rank's memory, and has 12 of work: 80.75 ms
// and the ends, where the work is 57 ms.
//
// Cost: O(takers of a component x its tasks), no more than some ten ms; above
// that, no bound.
#ifndef PIPELOOM_PLANNER_BOUNDS_AREA_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_AREA_BOUND_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Returns the bound in ns; 0 if no limit binds, if bytes have no taker or giver
// to be paired with, or if it would cost too much. `head` and `tail`, indexed
// by task, are lower bounds of the time before its start and after its end;
// `known` is a lower bound of the step time.
int64_t AreaBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                  absl::Span<const int64_t> tail, int64_t known);

// Returns the longest chain in ns from the end of the first to the start of the
// second task of each pair; -1: there is none. Returns nothing if it would cost
// more than the bound may.
std::vector<int64_t> ChainsBetween(
    const FlatGraph& graph,
    absl::Span<const std::pair<int32_t, int32_t>> pairs);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_AREA_BOUND_H_
