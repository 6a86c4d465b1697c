// The smallest memory limit under which a graph has any schedule.
//
// The same limit on every rank, static memory included. Bisection between what
// a single task needs and what some order was seen to need, by
// planner/memory_feasibility.h: a limit is kept by an order, or refuted, or, if
// its share of the budget ends first, left open and then only lower ones are
// tried. So both ends are proofs; where they meet, the limit is known to the
// byte. On pipelines (one chain a microbatch) they
// meet after one refutation.
//
// Cost: up to about 40 decisions, together of `max_sets` sets at most.
#ifndef PIPELOOM_PLANNER_SMALLEST_LIMIT_H_
#define PIPELOOM_PLANNER_SMALLEST_LIMIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "ir/stage_graph.h"
#include "partition/memory_candidates.h"
#include "planner/memory_guard.h"

namespace pipeloom::planner {

struct SmallestLimit {
  int64_t at_least = 0;  // In bytes: under less, no order is legal.
  int64_t enough = 0;    // Under this, one is.
  bool proven() const { return at_least == enough; }
};

// The limits of `graph` itself do not matter. Deterministic.
SmallestLimit FindSmallestLimit(const StageGraph& graph,
                                int64_t max_sets = 100'000);

// A limit that no selection of the step's memory choices goes below. `graph`
// has everything kept. Received tensors are not counted.
int64_t LeastLimit(const StageGraph& graph, const partition::StepMemory& memory,
                   int64_t max_sets = 100'000);

// `error`, why not even the leanest selection fits, and that limit.
absl::Status DescribeInfeasibleStep(const absl::Status& error,
                                    const StageGraph& graph,
                                    const partition::StepMemory& memory);

// DescribeShortage's error (planner/list_scheduler.h), and whether a smaller
// limit than the one it names would do.
absl::Status DescribeInfeasible(const StageGraph& graph,
                                const MemoryShortage& shortage);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SMALLEST_LIMIT_H_
