// Pairs of a forward and a backward of two microbatches that run together
// (ir/plan/pass_pairs.h, emulator/stage/pass_pair.h), for given orders.
//
//     rank 0:  F1 | F2 | F3 | B1 | F4 | B2 | F5 | B3 ...
//     paired:  F1 | F2 | F3 | F4 | F5+B1 | F6+B2 | F7+B3 ...
//
// A pair waits for the inputs of both passes and hands on both outputs at its
// end, so a microbatch spends one more pass on each hop, and ranks hold more of
// them. Where forwards and backwards of an order alternate, pairing them as
// they stand may shorten the step, which is what DualPipe's order is made for;
// in general forwards must come earlier.
//
// So the order is made again in several ways: a list schedule keeps the order
// of the forwards and that of the backwards of each rank, lets forwards run
// ahead of the order by a given number of passes, as far as memory allows, and
// starts a forward and a backward together where it has both. What is shortest
// by TimeSchedule is kept, if it keeps the memory limits.
#ifndef PIPELOOM_PLANNER_PASSES_PAIR_FORWARDS_H_
#define PIPELOOM_PLANNER_PASSES_PAIR_FORWARDS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/bounds/lower_bound.h"
#include "planner/passes/pair_passes.h"

namespace pipeloom::planner {

// Orders with their pairs.
struct ForwardPairedOrders {
  Schedule schedule{};  // For the graph with the pairs.
  std::vector<ForwardPair> pairs{};
  int64_t timings = 0;  // Number of orders that were timed.
};

// Pairs forwards with backwards. `graph` has the forms and choices of `memory`
// and `selection`. The result has no pairs if none make the step shorter.
// `expired` says that the time is over; it is asked between orders, empty: no
// deadline. Returns the errors of TimeSchedule for `orders`, which may be over
// the limits: orders with pairs are not. About twenty orders, each in O((tasks
// + edges) log tasks).
absl::StatusOr<ForwardPairedOrders> PairForwards(
    const StageGraph& graph, const partition::StepMemory& memory,
    const partition::MemorySelection& selection, const RankOrders& orders,
    const std::function<bool()>& expired = {});

// Returns the graph with the pairs (ir/plan/pass_pairs.h). `task_now` maps
// tasks of the pairs to tasks of `graph`; if empty, they are the same.
absl::StatusOr<StageGraph> ApplyForwardPairs(
    const StageGraph& graph, const std::vector<ForwardPair>& pairs,
    const IdVector<TaskId, TaskId>& task_now = {});

// Returns a lower bound of the step's time with any pairs, of both kinds, and
// any choices of `memory`: the longest chain of tasks, each as long as alone,
// or the load of a rank less all that gaps may hide. O(tasks + edges).
NamedBound BoundWithForwardPairs(const StageGraph& graph,
                                 const partition::StepMemory& memory);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PASSES_PAIR_FORWARDS_H_
