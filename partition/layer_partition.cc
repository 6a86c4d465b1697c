#include "partition/layer_partition.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace pipeloom::partition {
namespace {

// Whether runs of at most `most` cover the layers with at most `runs` of them.
// Fewer can always be cut further, as each run needs only one layer.
bool Fits(absl::Span<const int64_t> weights, int32_t runs, int64_t most) {
  int32_t used = 1;
  int64_t sum = 0;
  for (const int64_t weight : weights) {
    if (weight > most) return false;
    if (sum + weight > most) {
      ++used;
      sum = 0;
    }
    sum += weight;
  }
  return used <= runs;
}

int64_t LeastLargestRun(absl::Span<const int64_t> weights, int32_t runs) {
  int64_t low = 0;
  int64_t high = 0;
  for (const int64_t weight : weights) {
    low = std::max(low, weight);
    high += weight;
  }
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (Fits(weights, runs, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs) {
  const auto n = static_cast<int32_t>(weights.size());
  PIPELOOM_CHECK(runs >= 1 && runs <= n);
  const int64_t most = LeastLargestRun(weights, runs);
  // cost[i] of run k: least sum of squares of the first i layers in k runs,
  // each at most `most`. Doubles: squares of byte or nanosecond counts pass
  // 2^63, and a rounded tie is still broken the same way every time.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  const auto index = [](int32_t i) { return static_cast<size_t>(i); };
  std::vector<double> cost(index(n) + 1, kImpossible);
  std::vector<double> next(index(n) + 1, kImpossible);
  std::vector<int32_t> cut(index(runs) * (index(n) + 1), -1);
  cost[0] = 0;
  for (int32_t k = 0; k < runs; ++k) {
    std::fill(next.begin(), next.end(), kImpossible);
    int32_t* row = &cut[index(k) * (index(n) + 1)];
    for (int32_t end = k + 1; end <= n - (runs - 1 - k); ++end) {
      int64_t sum = 0;
      for (int32_t begin = end - 1; begin >= k; --begin) {
        sum += weights[index(begin)];
        if (sum > most) break;
        const double square =
            static_cast<double>(sum) * static_cast<double>(sum);
        const double total = cost[index(begin)] + square;
        if (total <= next[index(end)] && total < kImpossible) {
          next[index(end)] = total;
          row[end] = begin;
        }
      }
    }
    std::swap(cost, next);
  }
  std::vector<int32_t> begins(index(runs));
  int32_t end = n;
  for (int32_t k = runs - 1; k >= 0; --k) {
    end = cut[index(k) * (index(n) + 1) + index(end)];
    PIPELOOM_CHECK(end >= k);
    begins[index(k)] = end;
  }
  return begins;
}

}  // namespace pipeloom::partition
