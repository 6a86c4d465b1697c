// Orders of microbatches by their work.
#ifndef PIPELOOM_PLANNER_CORE_MICROBATCH_ORDER_H_
#define PIPELOOM_PLANNER_CORE_MICROBATCH_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

// Returns an order that makes the ends of a pipeline's step short, where ranks
// wait for the first and the last microbatches: the work grows to the middle
// and falls to the end. The items are indices of `loads`, the heaviest in the
// middle, the next ones after and before it by turns, equal loads by index; in
// the order of their indices if all loads are equal.
std::vector<int32_t> HeavyMiddle(absl::Span<const int64_t> loads);

// Returns the units (indices of `microbatch`, which has the microbatch of each)
// in the order of their microbatches in `order`, those of one microbatch by
// index.
std::vector<int32_t> UnitsInOrder(absl::Span<const int32_t> order,
                                  absl::Span<const int32_t> microbatch);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_MICROBATCH_ORDER_H_
