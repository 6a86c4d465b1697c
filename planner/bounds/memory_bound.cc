#include "planner/bounds/memory_bound.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

// Rounding allowed for in sums of doubles, in ns; the sums are far more exact.
constexpr double kRounding = 0.01;
constexpr int kMaxPrices = 12;
// The most tasks that a search for the producer on the same rank goes back.
constexpr int kLongestWalk = 512;

// A rank seen in one direction of time, with its tasks sorted by head.
struct Side {
  struct Item {
    int64_t head = 0;
    int64_t duration = 0;
    int64_t alloc = 0;
    int64_t free = 0;
    int32_t parent = -1;  // An earlier item, or none.
    int32_t second = -1;  // Another one that is no ancestor of `parent`.
  };
  std::vector<Item> items{};
  int64_t capacity = 0;
};

// Idle time by a moment.
struct Idle {
  int64_t at = 0;
  double time = 0;
};

// Computes the largest idle times for several moments.
class IdleTimes {
 public:
  explicit IdleTimes(const Side& side) : side_(side) {}

  // Returns x - f(x), bounded from below.
  double At(int64_t x) {
    count_ = 0;
    while (count_ < side_.items.size() && side_.items[count_].head < x) {
      ++count_;
    }
    weight_.resize(count_);
    memory_.resize(count_);
    double most_price = 0;
    for (size_t i = 0; i < count_; ++i) {
      const Side::Item& item = side_.items[i];
      weight_[i] = static_cast<double>(std::min(item.duration, x - item.head));
      const bool may_end = item.head + item.duration <= x;
      memory_[i] = static_cast<double>(item.alloc - (may_end ? item.free : 0));
      if (memory_[i] > 0) {
        most_price = std::max(most_price, weight_[i] / memory_[i]);
      }
    }
    // The work is at most value(price) for every price >= 0; value is convex.
    Line left = Price(0);
    double least = left.value;
    if (left.slope >= 0) return static_cast<double>(x) - least;
    // With a chain behind it, an item may be worth more than it is alone.
    double high = most_price;
    Line right = Price(high);
    for (int i = 0; right.slope < 0 && i < 8; ++i) {
      least = std::min(least, right.value);
      left = right;
      left_price_ = high;
      high = 4 * high + 1e-12;
      right = Price(high);
    }
    least = std::min(least, right.value);
    double low = left_price_;
    for (int i = 0; i < kMaxPrices && right.slope > left.slope; ++i) {
      const double price =
          (left.value - left.slope * low - right.value + right.slope * high) /
          (right.slope - left.slope);
      if (!(price > low) || !(price < high)) break;
      const double cut = left.value + left.slope * (price - low);
      const Line line = Price(price);
      least = std::min(least, line.value);
      if (line.value <= cut + kRounding / 2) break;
      if (line.slope < 0) {
        left = line;
        low = price;
      } else {
        right = line;
        high = price;
      }
    }
    left_price_ = 0;
    return static_cast<double>(x) - least;
  }

 private:
  struct Line {
    double value = 0;
    double slope = 0;
  };

  // Returns the value and slope of the best set when a byte over the capacity
  // costs `price`.
  Line Price(double price) {
    gain_.assign(count_, 0);
    used_.assign(count_, 0);
    Line line{.value = price * static_cast<double>(side_.capacity),
              .slope = static_cast<double>(side_.capacity)};
    for (size_t i = count_; i-- > 0;) {
      const double gain = gain_[i] + weight_[i] - price * memory_[i];
      if (gain <= 0) continue;
      double left = gain;
      double used = used_[i] + memory_[i];
      const Side::Item& item = side_.items[i];
      if (item.second >= 0) {
        // Gain may be split among producers in any way. First pays for what the
        // second one still costs.
        const int32_t other = item.second;
        const double own =
            gain_[other] + weight_[other] - price * memory_[other];
        if (gain + own <= 0) {
          gain_[other] += gain;
          used_[other] += used;
          continue;
        }
        if (own <= 0) {
          left += own;
          used += used_[other] + memory_[other];
          gain_[other] -= own;
          used_[other] = -memory_[other];
        }
      }
      if (item.parent >= 0) {
        gain_[item.parent] += left;
        used_[item.parent] += used;
      } else {
        line.value += left;
        line.slope -= used;
      }
    }
    return line;
  }

  const Side& side_;
  size_t count_ = 0;
  double left_price_ = 0;
  std::vector<double> weight_{};
  std::vector<double> memory_{};
  std::vector<double> gain_{};
  std::vector<double> used_{};
};

std::vector<Idle> IdleOf(const Side& side, int64_t known, int32_t points) {
  std::vector<int64_t> moments;
  for (const Side::Item& item : side.items) {
    if (item.alloc <= item.free && item.head <= known) {
      moments.push_back(item.head);
    }
  }
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  std::vector<Idle> idle = {{}};
  if (!side.items.empty()) {
    // Nothing can run before the first head.
    const int64_t first = std::min(known, side.items[0].head);
    idle.push_back({first, static_cast<double>(first)});
  }
  IdleTimes times(side);
  const size_t most = static_cast<size_t>(std::max(1, points));
  for (size_t i = 0; i < std::min(most, moments.size()); ++i) {
    // Takes the first half of the points one by one, and spreads the others.
    size_t at = i;
    if (moments.size() > most && i >= most / 2) {
      at = most / 2 +
           (i - most / 2) * (moments.size() - most / 2) / (most - most / 2);
    }
    idle.push_back({moments[at], times.At(moments[at])});
  }
  std::sort(idle.begin(), idle.end(),
            [](const Idle& a, const Idle& b) { return a.at < b.at; });
  return idle;
}

// Makes the tasks of a rank in one direction. `tasks` has producers (in that
// direction) first.
Side MakeSide(const FlatGraph& g, const std::vector<int32_t>& tasks,
              absl::Span<const int64_t> head, bool backwards,
              std::vector<int32_t>& place) {
  Side side;
  std::vector<int32_t> order = tasks;
  // A task may take no time, so that a consumer has the same head: ties keep
  // producers first.
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return head[a] < head[b]; });
  for (const int32_t t : order) {
    Side::Item item{.head = head[t], .duration = g.duration[t]};
    item.alloc = backwards ? g.free[t] : g.alloc[t];
    item.free = backwards ? g.alloc[t] : g.free[t];
    // Finds producers on the rank: direct ones, and the first on the chain that
    // ends last.
    const auto& offset = backwards ? g.succ_offset : g.pred_offset;
    const auto& other = backwards ? g.succ : g.pred;
    const auto& delay = backwards ? g.succ_delay : g.pred_delay;
    int32_t ahead = t;
    for (int step = 0; step < kLongestWalk; ++step) {
      int32_t next = -1;
      int64_t latest = -1;
      for (int32_t e = offset[ahead]; e < offset[ahead + 1]; ++e) {
        const int32_t p = other[e];
        if (g.rank[p] == g.rank[t]) {
          item.parent = std::max(item.parent, place[p]);
        }
        const int64_t end = head[p] + g.duration[p] + delay[e];
        if (end <= latest) continue;
        latest = end;
        next = p;
      }
      if (next < 0 || g.rank[next] == g.rank[t]) break;
      ahead = next;
    }
    // An ancestor of the parent adds nothing.
    for (int32_t e = offset[t]; e < offset[t + 1]; ++e) {
      const int32_t p = other[e];
      if (g.rank[p] != g.rank[t] || place[p] < 0) continue;
      int32_t above = item.parent;
      while (above > place[p]) above = side.items[above].parent;
      if (above != place[p]) item.second = place[p];
    }
    place[t] = static_cast<int32_t>(side.items.size());
    side.items.push_back(item);
  }
  return side;
}

}  // namespace

int64_t MemoryBound(const FlatGraph& g, absl::Span<const int64_t> head,
                    absl::Span<const int64_t> tail, int64_t known,
                    int32_t points) {
  std::vector<std::vector<int32_t>> tasks(static_cast<size_t>(g.num_ranks));
  for (int32_t t = 0; t < g.num_tasks; ++t) tasks[g.rank[t]].push_back(t);
  std::vector<int32_t> place(static_cast<size_t>(g.num_tasks), -1);
  std::vector<int32_t> reverse_place(place);
  int64_t bound = 0;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    if (g.capacity[r] >= kNoLimit) continue;
    int64_t most = 0;
    int64_t left = 0;
    int64_t load = 0;
    for (const int32_t t : tasks[r]) {
      most += g.alloc[t];
      left += g.alloc[t] - g.free[t];
      load += g.duration[t];
    }
    if (most <= g.capacity[r]) continue;
    Side begin = MakeSide(g, tasks[r], head, false, place);
    begin.capacity = g.capacity[r];
    std::reverse(tasks[r].begin(), tasks[r].end());
    Side end = MakeSide(g, tasks[r], tail, true, reverse_place);
    end.capacity = g.capacity[r] - left;
    const std::vector<Idle> first = IdleOf(begin, known, points);
    std::vector<Idle> last = IdleOf(end, known, points);
    // The best idle time by each moment.
    for (size_t i = 1; i < last.size(); ++i) {
      last[i].time = std::max(last[i].time, last[i - 1].time);
    }
    for (const Idle& idle : first) {
      size_t i = last.size();
      while (i > 0 && last[i - 1].at > known - idle.at) --i;
      if (i == 0) continue;
      const double time =
          static_cast<double>(load) + idle.time + last[i - 1].time;
      bound =
          std::max(bound, static_cast<int64_t>(std::ceil(time - kRounding)));
    }
  }
  return bound;
}

}  // namespace pipeloom::planner
