#include "planner/layout/finalists.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pipeloom::planner {
namespace {

constexpr int64_t kOfOneOrigin = 3;
// Standard errors by which a partition must be better to be surely so.
constexpr double kSurely = 1;

}  // namespace

bool IsBetterPartition(const PartitionCandidate& a,
                       const PartitionCandidate& b) {
  if (!a.time.has_value() || !b.time.has_value()) {
    return a.time.has_value() && !b.time.has_value();
  }
  if (a.misfits != b.misfits) return a.misfits < b.misfits;
  return *a.time < *b.time;
}

bool IsSurelyBetterPartition(const PartitionCandidate& a,
                             const PartitionCandidate& b,
                             const std::vector<WeighedStep>& steps) {
  if (a.misfits != b.misfits || !a.time.has_value() || !b.time.has_value()) {
    return IsBetterPartition(a, b);
  }
  double weights = 0;
  double sum = 0;
  double squares = 0;
  int32_t n = 0;
  for (size_t s = 0; s < std::min(a.times.size(), b.times.size()); ++s) {
    if (a.times[s] == kZero || b.times[s] == kZero) continue;
    const double gain = ToSeconds(b.times[s]) - ToSeconds(a.times[s]);
    const double weight = steps[s].weight;
    weights += weight;
    sum += weight * gain;
    squares += weight * gain * gain;
    ++n;
  }
  if (n < 2) return IsBetterPartition(a, b);
  const double mean = sum / weights;
  const double variance = std::max(0.0, squares / weights - mean * mean);
  return mean > kSurely * std::sqrt(variance / (n - 1));
}

std::vector<size_t> BestPartitions(
    const std::vector<PartitionCandidate>& tried) {
  std::vector<size_t> order;
  for (size_t i = 0; i < tried.size(); ++i) {
    if (tried[i].time.has_value()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return IsBetterPartition(tried[a], tried[b]);
  });
  return order;
}

std::vector<PartitionCandidate> Finalists(
    const std::vector<PartitionCandidate>& tried, size_t most) {
  std::vector<PartitionCandidate> finalists = {tried.front()};
  for (const size_t i : BestPartitions(tried)) {
    if (finalists.size() > most) break;
    const int64_t alike = std::count_if(finalists.begin() + 1, finalists.end(),
                                        [&](const PartitionCandidate& c) {
                                          return c.origin == tried[i].origin;
                                        });
    if (i > 0 && alike < kOfOneOrigin) finalists.push_back(tried[i]);
  }
  return finalists;
}

}  // namespace pipeloom::planner
