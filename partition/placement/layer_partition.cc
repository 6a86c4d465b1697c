#include "partition/placement/layer_partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace pipeloom::partition {
namespace {

// Returns whether at most `runs` runs of at most `most` each cover the layers.
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

size_t Index(int32_t i) { return static_cast<size_t>(i); }

bool May(absl::Span<const std::vector<bool>> allowed, int32_t layer,
         int32_t run) {
  return allowed.empty() || allowed[Index(layer)].empty() ||
         allowed[Index(layer)][Index(run)];
}

int64_t Slowed(int64_t weight, absl::Span<const double> slow, int32_t run) {
  if (slow.empty() || slow[Index(run)] == 1) return weight;
  return std::llround(static_cast<double>(weight) * slow[Index(run)]);
}

// Does the same as LeastLargestRun, by dynamic programming; -1 if there is no
// split.
int64_t LeastLargestAllowed(absl::Span<const int64_t> weights, int32_t runs,
                            absl::Span<const std::vector<bool>> allowed,
                            absl::Span<const double> slow) {
  const auto n = static_cast<int32_t>(weights.size());
  std::vector<int64_t> cost(Index(n) + 1, -1);
  cost[0] = 0;
  for (int32_t k = 0; k < runs; ++k) {
    std::vector<int64_t> next(Index(n) + 1, -1);
    for (int32_t end = k + 1; end <= n - (runs - 1 - k); ++end) {
      int64_t sum = 0;
      for (int32_t begin = end - 1; begin >= k; --begin) {
        if (!May(allowed, begin, k)) break;
        sum += weights[Index(begin)];
        if (cost[Index(begin)] < 0) continue;
        const int64_t largest =
            std::max(cost[Index(begin)], Slowed(sum, slow, k));
        int64_t& best = next[Index(end)];
        if (best < 0 || largest < best) best = largest;
      }
    }
    cost = std::move(next);
  }
  return cost[Index(n)];
}

// Returns the split with the least sum of squares among those with runs of at
// most `most`.
std::vector<int32_t> EvenestSplit(absl::Span<const int64_t> weights,
                                  int32_t runs, int64_t most,
                                  absl::Span<const std::vector<bool>> allowed,
                                  absl::Span<const double> slow) {
  const auto n = static_cast<int32_t>(weights.size());
  // cost[i] of run k: least sum of squares of the first i layers in k runs,
  // each at most `most`. Doubles: squares of byte or nanosecond counts exceed
  // 2^63, and a rounded tie is still broken the same way every time.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  std::vector<double> cost(Index(n) + 1, kImpossible);
  std::vector<double> next(Index(n) + 1, kImpossible);
  std::vector<int32_t> cut(Index(runs) * (Index(n) + 1), -1);
  cost[0] = 0;
  for (int32_t k = 0; k < runs; ++k) {
    std::fill(next.begin(), next.end(), kImpossible);
    int32_t* row = &cut[Index(k) * (Index(n) + 1)];
    for (int32_t end = k + 1; end <= n - (runs - 1 - k); ++end) {
      int64_t sum = 0;
      for (int32_t begin = end - 1; begin >= k; --begin) {
        if (!May(allowed, begin, k)) break;
        sum += weights[Index(begin)];
        const int64_t load = Slowed(sum, slow, k);
        if (load > most) break;
        const double square =
            static_cast<double>(load) * static_cast<double>(load);
        const double total = cost[Index(begin)] + square;
        if (total <= next[Index(end)] && total < kImpossible) {
          next[Index(end)] = total;
          row[end] = begin;
        }
      }
    }
    std::swap(cost, next);
  }
  std::vector<int32_t> begins(Index(runs));
  int32_t end = n;
  for (int32_t k = runs - 1; k >= 0; --k) {
    end = cut[Index(k) * (Index(n) + 1) + Index(end)];
    PIPELOOM_CHECK(end >= k);
    begins[Index(k)] = end;
  }
  return begins;
}

}  // namespace

std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs) {
  PIPELOOM_CHECK(runs >= 1 && runs <= static_cast<int32_t>(weights.size()));
  return EvenestSplit(weights, runs, LeastLargestRun(weights, runs), {}, {});
}

std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs,
                                 absl::Span<const std::vector<bool>> allowed,
                                 absl::Span<const double> slow_of_run) {
  PIPELOOM_CHECK(runs >= 1 && runs <= static_cast<int32_t>(weights.size()));
  PIPELOOM_CHECK(allowed.empty() || allowed.size() == weights.size());
  PIPELOOM_CHECK(slow_of_run.empty() || slow_of_run.size() == Index(runs));
  const int64_t most = LeastLargestAllowed(weights, runs, allowed, slow_of_run);
  if (most < 0) return {};
  return EvenestSplit(weights, runs, most, allowed, slow_of_run);
}

}  // namespace pipeloom::partition
