// Every way to cut a few layers into runs; says what the best is.
#ifndef PIPELOOM_TESTS_ORACLES_SPLIT_LAYERS_BRUTE_FORCE_H_
#define PIPELOOM_TESTS_ORACLES_SPLIT_LAYERS_BRUTE_FORCE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pipeloom::testing {

struct SplitQuality {
  int64_t heaviest = std::numeric_limits<int64_t>::max();
  int64_t sum_of_squares = std::numeric_limits<int64_t>::max();
  auto operator<=>(const SplitQuality&) const = default;
};

// The runs begin at `begins`, the first of which is 0.
inline SplitQuality QualityOf(const std::vector<int64_t>& weights,
                              const std::vector<int32_t>& begins) {
  SplitQuality quality{.heaviest = 0, .sum_of_squares = 0};
  for (size_t run = 0; run < begins.size(); ++run) {
    const size_t end = run + 1 < begins.size()
                           ? static_cast<size_t>(begins[run + 1])
                           : weights.size();
    int64_t sum = 0;
    for (auto i = static_cast<size_t>(begins[run]); i < end; ++i) {
      sum += weights[i];
    }
    quality.heaviest = std::max(quality.heaviest, sum);
    quality.sum_of_squares += sum * sum;
  }
  return quality;
}

// Over all 2^(layers - 1) sets of cuts. For 20 layers at most.
inline SplitQuality BestSplitQuality(const std::vector<int64_t>& weights,
                                     int32_t runs) {
  SplitQuality best;
  const uint32_t places = static_cast<uint32_t>(weights.size()) - 1;
  for (uint32_t cuts = 0; cuts < (uint32_t{1} << places); ++cuts) {
    if (std::popcount(cuts) != runs - 1) continue;
    std::vector<int32_t> begins = {0};
    for (uint32_t i = 0; i < places; ++i) {
      if ((cuts >> i & 1) != 0) begins.push_back(static_cast<int32_t>(i) + 1);
    }
    best = std::min(best, QualityOf(weights, begins));
  }
  return best;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ORACLES_SPLIT_LAYERS_BRUTE_FORCE_H_
