#include "trace/clock_alignment.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace pipeloom::trace {
namespace {

constexpr int kSearchSteps = 80;

// Messages between ranks a < b as bounds of b's line: at local time x of b,
// the shift to a's clock is at least (or at most) y.
struct Bound {
  double x = 0;
  double y = 0;
};
struct Pair {
  std::vector<Bound> least{};
  std::vector<Bound> most{};
};

struct Line {
  double offset = 0;
  double drift = 0;
  double slack = -std::numeric_limits<double>::infinity();
};

// Returns the best offset for a drift.
Line FitOffset(const Pair& pair, double origin, double drift) {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  for (const Bound& b : pair.least) {
    low = std::max(low, b.y - drift * (b.x - origin));
  }
  for (const Bound& b : pair.most) {
    high = std::min(high, b.y - drift * (b.x - origin));
  }
  if (pair.least.empty()) return {high, drift, 0};
  if (pair.most.empty()) return {low, drift, 0};
  return {(low + high) / 2, drift, (high - low) / 2};
}

Line Fit(const Pair& pair, double origin, double most_drift) {
  Line best = FitOffset(pair, origin, 0);
  if (pair.least.size() < 2 || pair.most.size() < 2) return best;
  double low = -most_drift;
  double high = most_drift;
  for (int i = 0; i < kSearchSteps; ++i) {
    const double a = low + (high - low) / 3;
    const double b = high - (high - low) / 3;
    if (FitOffset(pair, origin, a).slack < FitOffset(pair, origin, b).slack) {
      low = a;
    } else {
      high = b;
    }
  }
  const double drift = (low + high) / 2;
  // At the end of the range nothing determines the drift: the messages are too
  // few or too slow.
  if (std::abs(drift) > 0.99 * most_drift) return best;
  const Line found = FitOffset(pair, origin, drift);
  return found.slack > best.slack ? found : best;
}

}  // namespace

IdVector<RankId, ClockFit> AlignClocks(
    int32_t num_ranks, const std::vector<TimedMessage>& messages,
    double most_drift) {
  IdVector<RankId, ClockFit> fits(num_ranks);
  if (num_ranks == 0) return fits;
  fits[RankId(0)].aligned = true;
  // Ranks are added one by one, each by the pair with the most messages to
  // ranks that are aligned already.
  for (int32_t added = 1; added < num_ranks; ++added) {
    std::map<RankId, int64_t> count;
    for (const TimedMessage& m : messages) {
      if (fits[m.from].aligned == fits[m.to].aligned) continue;
      ++count[fits[m.from].aligned ? m.to : m.from];
    }
    RankId next;
    for (const auto& [rank, n] : count) {
      if (next.is_none() || n > count[next]) next = rank;
    }
    if (next.is_none()) break;
    Pair pair;
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const TimedMessage& m : messages) {
      if (m.from == next && fits[m.to].aligned) {
        first = std::min(first, m.sent_ns);
      }
      if (m.to == next && fits[m.from].aligned) {
        first = std::min(first, m.arrived_ns);
      }
    }
    for (const TimedMessage& m : messages) {
      if (m.to == next && fits[m.from].aligned) {
        // It arrives, on the common clock, after it was sent.
        const int64_t sent = fits[m.from].ToCommon(m.sent_ns);
        pair.least.push_back({static_cast<double>(m.arrived_ns - first),
                              static_cast<double>(sent - m.arrived_ns)});
      } else if (m.from == next && fits[m.to].aligned) {
        const int64_t arrived = fits[m.to].ToCommon(m.arrived_ns);
        pair.most.push_back({static_cast<double>(m.sent_ns - first),
                             static_cast<double>(arrived - m.sent_ns)});
      }
    }
    const Line line = Fit(pair, 0, most_drift);
    fits[next] = {line.offset, line.drift, first, true};
  }
  return fits;
}

}  // namespace pipeloom::trace
