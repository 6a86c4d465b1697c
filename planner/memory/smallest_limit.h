// The smallest memory limit under which a graph has any schedule.
//
// The same limit on every rank, static memory included. Bisection between what
// a single task needs and what some order was seen to need, by
// planner/core/memory_feasibility.h: a limit is kept by an order, or refuted,
// or, if its share of the budget ends first, left open and then only lower ones
// are tried. So both ends are proofs; where they meet, the limit is known to
// the byte. On pipelines (one chain a microbatch) they meet after one
// refutation.
//
// Cost: up to about 40 decisions, together of `max_sets` sets at most.
#ifndef PIPELOOM_PLANNER_MEMORY_SMALLEST_LIMIT_H_
#define PIPELOOM_PLANNER_MEMORY_SMALLEST_LIMIT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/units.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/memory_guard.h"

namespace pipeloom::planner {

struct SmallestLimit {
  int64_t at_least = 0;  // In bytes: under less, no order is legal.
  int64_t enough = 0;    // Under this, one is.
  bool proven() const { return at_least == enough; }
};

// The limits of `graph` itself do not matter. Deterministic.
SmallestLimit FindSmallestLimit(const StageGraph& graph,
                                int64_t max_sets = 100'000);

// The same of a step with its memory choices: `at_least` is proven for every
// selection and order of `graph`, which has everything kept; `enough` is the
// least for which an order was found, and no more than that. Of several graphs
// of one step (backward fused or split), each end is the smaller one
// (SmallerOf): no other choices are covered. Received tensors are not counted,
// which only makes `at_least` smaller than it could be.
SmallestLimit SmallestLimitOfStep(const StageGraph& graph,
                                  const partition::StepMemory& memory,
                                  int64_t max_sets = 100'000);
SmallestLimit SmallerOf(const std::optional<SmallestLimit>& a,
                        const SmallestLimit& b);

// `error`, why no plan was found within `given`, with what is proven of it.
// `limit`: of all graphs that the planner may make of the step.
absl::Status DescribeInfeasibleStep(const absl::Status& error,
                                    const SmallestLimit& limit, Bytes given);

// DescribeShortage's error (planner/construct/list_scheduler.h), and whether a
// smaller limit than the one it names would do.
absl::Status DescribeInfeasible(const StageGraph& graph,
                                const MemoryShortage& shortage);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_SMALLEST_LIMIT_H_
