// The smallest memory limit under which a graph has any schedule.
//
// The limit is the same on every rank and includes static memory. It is found
// by bisection between what a single task needs and what some order was seen to
// need, using planner/core/memory_feasibility.h: a limit is met by an order, or
// refuted, or left open if its share of the budget ends first, and then only
// lower ones are tried. So both ends are proven; if they meet, the limit is
// exact to the byte. On pipelines (one chain for each microbatch) they meet
// after one refutation.
//
// Cost: up to about 40 decisions, with at most `max_sets` sets in total.
#ifndef PIPELOOM_PLANNER_MEMORY_SMALLEST_LIMIT_H_
#define PIPELOOM_PLANNER_MEMORY_SMALLEST_LIMIT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/units.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/memory_guard.h"

namespace pipeloom::planner {

// Proven bounds of the smallest limit.
struct SmallestLimit {
  int64_t at_least = 0;  // In bytes; under any lower limit no order is legal.
  int64_t enough = 0;    // In bytes; under this limit some order is legal.
  bool proven() const { return at_least == enough; }
};

// Finds the smallest limit of `graph`, whose own limits do not matter.
// Deterministic.
SmallestLimit FindSmallestLimit(const StageGraph& graph,
                                int64_t max_sets = 100'000);

// Finds the smallest limit of a step with its memory choices. `graph` has
// everything kept. `at_least` is proven for every selection and order; `enough`
// is only the least limit for which an order was found. Received tensors are
// not counted, so both may be smaller than what a plan needs.
SmallestLimit SmallestLimitOfStep(const StageGraph& graph,
                                  const partition::StepMemory& memory,
                                  int64_t max_sets = 100'000);

// Returns the smallest limit found by bisection, to about 1 %, that `works`,
// rounded as FormatBytes gives it: with one that differs by a byte a search may
// find nothing. nullopt: none does. `too_small`: one that does not; `guess`:
// the first that is tried above it. Calls `works` at most some 20 times, and
// once `is_late` only until it is true.
std::optional<Bytes> FindLimitThatWorks(Bytes too_small, Bytes guess,
                                        absl::FunctionRef<bool(Bytes)> works,
                                        const std::function<bool()>& is_late,
                                        const std::stop_token& stop);

// Returns `error`, which says why no plan was found within `given`, with what
// is proven about it appended, and the limit `works`, for which a plan was
// found.
absl::Status DescribeInfeasibleStep(const absl::Status& error,
                                    std::optional<int64_t> at_least,
                                    Bytes given, std::optional<Bytes> works);

// Returns DescribeShortage's error (planner/construct/list_scheduler.h), and
// the smallest limit that works.
absl::Status DescribeInfeasible(const StageGraph& graph,
                                const MemoryShortage& shortage);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_SMALLEST_LIMIT_H_
