#include "planner/layout/finalists.h"

#include <algorithm>
#include <cstdint>

namespace pipeloom::planner {
namespace {

constexpr int64_t kOfOneOrigin = 3;  // The most finalists of one recipe.
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
  const MeanGain gain = GainOf(steps, b.times, a.times);
  if (gain.steps < 2) return IsBetterPartition(a, b);
  return gain.mean > kSurely * gain.error;
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
