// The order of microbatches that makes the ends of a pipeline's step short: the
// work grows to the middle and falls to the end, as ranks wait for the first
// and the last microbatches.
#ifndef PIPELOOM_PLANNER_CORE_HEAVY_MIDDLE_H_
#define PIPELOOM_PLANNER_CORE_HEAVY_MIDDLE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

// Returns the items (indices of `loads`), the heaviest in the middle, the next
// ones after and before it by turns, equal loads by index; in the order of
// their indices if all loads are equal.
std::vector<int32_t> HeavyMiddle(absl::Span<const int64_t> loads);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_HEAVY_MIDDLE_H_
