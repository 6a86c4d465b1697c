#include "partition/batching/rank_slowness.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pipeloom::partition {
namespace {

constexpr double kMaxSlow = 64;

}  // namespace

RankSlowness::RankSlowness(const emulator::StageCostModel& costs,
                           const IdVector<ModuleId, TypicalWork>& typical) {
  const JobSpec& job = costs.job();
  if (!job.cluster.is_mixed()) return;
  times_.resize(job.model.modules.size());
  for (int32_t replica = 0; replica < job.parallel.dp; ++replica) {
    const LayerPricing pricing(job, costs.ForReplica(replica));
    for (const ModuleId m : times_.ids()) {
      if (!typical[m].present()) continue;
      times_[m].resize(static_cast<size_t>(job.parallel.pp), kZero);
      for (int32_t r = 0; r < job.parallel.pp; ++r) {
        Duration& time = times_[m][static_cast<size_t>(r)];
        time = std::max(time,
                        pricing.AllPasses(m, typical[m].OfSlice(0), RankId(r)));
      }
    }
  }
}

std::vector<double> RankSlowness::Of(
    const std::vector<ModuleId>& modules) const {
  std::vector<Duration> sums;
  for (const ModuleId m : modules) {
    if (!times_.Contains(m)) continue;
    sums.resize(std::max(sums.size(), times_[m].size()), kZero);
    for (size_t r = 0; r < times_[m].size(); ++r) sums[r] += times_[m][r];
  }
  if (sums.empty()) return {};
  const auto [fastest, slowest] = std::minmax_element(sums.begin(), sums.end());
  if (*fastest <= kZero || *slowest == *fastest) return {};
  std::vector<double> slow;
  for (const Duration time : sums) {
    slow.push_back(std::min(kMaxSlow, ToSeconds(time) / ToSeconds(*fastest)));
  }
  return slow;
}

}  // namespace pipeloom::partition
