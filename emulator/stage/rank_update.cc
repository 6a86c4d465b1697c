#include "emulator/stage/rank_update.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pipeloom::emulator {
namespace {

double ParametersOf(const RankUpdate& update) {
  int64_t sum = 0;
  for (const RankUpdate::Part& part : update.parts) sum += part.parameters;
  return static_cast<double>(sum);
}

// Returns the time at `share` of a pass.
int64_t At(const PassSpan& span, int64_t k, int64_t n) {
  return span.begin + (span.end - span.begin) * k / n;
}

size_t BucketsIn(const RankUpdate& update) {
  size_t sum = 0;
  for (const RankUpdate::Part& part : update.parts) {
    sum += static_cast<size_t>(part.buckets);
  }
  return sum;
}

// A bucket: when it is ready or needed (-1: never), and its share of the rank's
// parameters.
struct Bucket {
  int64_t time = 0;
  double share = 0;
};

int64_t ShareOf(Duration time, double share) {
  return static_cast<int64_t>(static_cast<double>(time.count()) *
                              std::min(share, 1.0));
}

}  // namespace

int32_t BucketsOf(int64_t parameters, int64_t replicas, int64_t least) {
  constexpr double kLeastBucket = 40e6;
  constexpr double kBucketAReplica = 1e6;
  const double bucket =
      least > 0 ? static_cast<double>(least)
                : std::max(kLeastBucket,
                           kBucketAReplica * static_cast<double>(replicas));
  return static_cast<int32_t>(std::clamp(
      std::ceil(static_cast<double>(parameters) / bucket), 1.0, 1024.0));
}

int64_t ReducedAt(const RankUpdate& update,
                  absl::Span<const PartSpans* const> last) {
  if (update.reduce == kZero) return 0;
  const double parameters = ParametersOf(update);
  std::vector<Bucket> buckets;
  buckets.reserve(BucketsIn(update));
  for (size_t p = update.parts.size(); p-- > 0;) {
    const int64_t n = update.parts[p].buckets;
    const double own_share = static_cast<double>(update.parts[p].parameters) /
                             parameters / static_cast<double>(n);
    for (int64_t k = 1; k <= n; ++k) {
      Bucket bucket{.share = own_share};
      for (const PartSpans* replica : last) {
        const PassSpan& span = (*replica)[p];
        // A replica without work for the stage has nothing to add.
        if (span.begin < 0) continue;
        bucket.time = std::max(bucket.time, At(span, k, n));
      }
      buckets.push_back(bucket);
    }
  }
  int64_t free = 0;
  int64_t done = 0;
  double share = 0;
  for (size_t k = 0; k < buckets.size(); ++k) {
    share += buckets[k].share;
    const int64_t until = k + 1 == buckets.size()
                              ? update.reduce.count()
                              : ShareOf(update.reduce, share);
    free = std::max(free, buckets[k].time) + (until - done);
    done = until;
  }
  return free;
}

int64_t WaitForWeights(const RankUpdate& update,
                       absl::Span<const PartSpans* const> first) {
  if (update.gather == kZero) return 0;
  const double parameters = ParametersOf(update);
  std::vector<Bucket> buckets;
  buckets.reserve(BucketsIn(update));
  for (size_t p = 0; p < update.parts.size(); ++p) {
    const int64_t n = update.parts[p].buckets;
    const double own_share = static_cast<double>(update.parts[p].parameters) /
                             parameters / static_cast<double>(n);
    for (int64_t k = 0; k < n; ++k) {
      int64_t needed = -1;
      for (const PartSpans* replica : first) {
        const PassSpan& span = (*replica)[p];
        if (span.begin < 0) continue;
        const int64_t own = At(span, k, n);
        needed = needed < 0 ? own : std::min(needed, own);
      }
      buckets.push_back({.time = needed, .share = own_share});
    }
  }
  int64_t wait = 0;
  double share = 0;
  for (const Bucket& bucket : buckets) {
    share += bucket.share;
    if (bucket.time < 0) continue;
    wait = std::max(wait, ShareOf(update.gather, share) - bucket.time);
  }
  return wait;
}

}  // namespace pipeloom::emulator
