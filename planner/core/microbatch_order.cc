#include "planner/core/microbatch_order.h"

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

std::vector<int32_t> UnitsInOrder(absl::Span<const int32_t> order,
                                  absl::Span<const int32_t> microbatch) {
  std::vector<size_t> place(order.size());  // Indexed by microbatch.
  for (size_t i = 0; i < order.size(); ++i) {
    place[static_cast<size_t>(order[i])] = i;
  }
  const auto place_of = [&](int32_t unit) {
    return place[static_cast<size_t>(microbatch[static_cast<size_t>(unit)])];
  };
  std::vector<int32_t> units(microbatch.size());
  std::iota(units.begin(), units.end(), 0);
  std::stable_sort(units.begin(), units.end(), [&](int32_t a, int32_t b) {
    return place_of(a) < place_of(b);
  });
  return units;
}

}  // namespace pipeloom::planner
