#include "planner/core/heavy_middle.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace pipeloom::planner {

std::vector<int32_t> HeavyMiddle(absl::Span<const int64_t> loads) {
  std::vector<int32_t> falling(loads.size());
  std::iota(falling.begin(), falling.end(), 0);
  if (std::adjacent_find(loads.begin(), loads.end(), std::not_equal_to<>()) ==
      loads.end()) {
    return falling;
  }
  std::stable_sort(falling.begin(), falling.end(), [&](int32_t a, int32_t b) {
    return loads[static_cast<size_t>(a)] > loads[static_cast<size_t>(b)];
  });
  std::vector<int32_t> order(loads.size());
  // The places after the middle and up to it that are filled.
  size_t after = loads.size() / 2 + 1;
  size_t before = loads.size() / 2 + 1;
  for (size_t i = 0; i < falling.size(); ++i) {
    const bool goes_before =
        (i % 2 == 0 && before > 0) || after >= order.size();
    order[goes_before ? --before : after++] = falling[i];
  }
  return order;
}

}  // namespace pipeloom::planner
