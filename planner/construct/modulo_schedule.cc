#include "planner/construct/modulo_schedule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>

#include "planner/core/flat_graph.h"

namespace pipeloom::planner {
namespace {

// Rounding of durations, as a share, that a slot half as long must save. Chosen
// on random problems (`pipeloom bench --random train:N`).
constexpr double kCostOfFineness = 0.03;

int32_t Floor(int32_t a, int32_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
int32_t Modulo(int32_t a, int32_t b) { return a - Floor(a, b) * b; }

// Returns the bits of a circle of `period` slots, with slot `by` first.
uint64_t Turned(uint64_t bits, int32_t by, int32_t period) {
  if (by == 0) return bits;
  const uint64_t all = ~uint64_t{0} >> (64 - period);
  return (bits >> by | bits << (period - by)) & all;
}

// Returns the time from `earliest` until `slots` slots in a row are free and
// takes them; -1 if there are none. 1 <= period <= 64.
int32_t Take(int32_t earliest, int32_t slots, int32_t period, uint64_t* busy) {
  if (slots > period) return -1;
  const int32_t begin = earliest % period;
  const uint64_t all = ~uint64_t{0} >> (64 - period);
  const uint64_t free = Turned(~*busy & all, begin, period);
  uint64_t runs = free;
  for (int32_t i = 1; i < slots; ++i) runs &= Turned(free, i, period);
  if (runs == 0) return -1;
  const int32_t wait = std::countr_zero(runs);
  const uint64_t taken = ~uint64_t{0} >> (64 - slots);
  *busy |= Turned(taken, Modulo(-(begin + wait), period), period);
  return wait;
}

}  // namespace

MeanMicrobatch::MeanMicrobatch(const StageGraph& graph) {
  using Key = std::tuple<int32_t, int32_t, int, int32_t>;
  std::map<Key, int32_t> index;
  std::map<int32_t, int32_t> places;
  for (const Task& task : graph.tasks()) places[task.microbatch.value()] = 0;
  int32_t count = 0;
  for (auto& [id, place] : places) place = count++;
  std::vector<TaskClass> found;
  std::vector<int32_t> found_of;
  for (const Task& task : graph.tasks()) {
    const auto [at, is_new] =
        index.emplace(Key(task.module.value(), task.stage.value(),
                          static_cast<int>(task.pass), task.sub_microbatch),
                      static_cast<int32_t>(found.size()));
    if (is_new) {
      found.push_back({.rank = task.rank.value(),
                       .weight_grad = task.pass == Pass::kWeightGrad});
    }
    TaskClass& c = found[at->second];
    if (c.rank != task.rank.value()) return;  // A stage on several ranks.
    c.duration += task.duration.count();
    c.alloc += task.alloc.count();
    c.free += task.free.count();
    found_of.push_back(at->second);
    microbatch.push_back(places.at(task.microbatch.value()));
  }
  for (TaskClass& c : found) {
    c.duration /= count;
    c.alloc /= count;
    c.free /= count;
  }
  std::map<std::pair<int32_t, int32_t>, int64_t> edges;
  for (const Dependency& edge : graph.edges()) {
    const int32_t from = edge.from.value();
    const int32_t to = edge.to.value();
    if (microbatch[from] != microbatch[to]) return;
    int64_t& delay = edges[std::pair(found_of[from], found_of[to])];
    delay = std::max(delay, edge.delay.count());
  }
  std::vector<std::vector<Producer>> consumers(found.size());
  std::vector<int32_t> missing(found.size(), 0);
  for (const auto& [ends, delay] : edges) {
    consumers[ends.first].push_back({ends.second, delay});
    ++missing[ends.second];
  }
  // Kahn's algorithm; the smallest class first.
  std::vector<int32_t> order;
  for (size_t c = 0; c < found.size(); ++c) {
    if (missing[c] == 0) order.push_back(static_cast<int32_t>(c));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const Producer& consumer : consumers[order[i]]) {
      if (--missing[consumer.of] == 0) order.push_back(consumer.of);
    }
  }
  if (order.size() != found.size()) return;
  std::vector<int32_t> place(found.size());
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int32_t>(i);
  }
  classes.resize(found.size());
  for (size_t c = 0; c < found.size(); ++c) {
    for (const Producer& consumer : consumers[c]) {
      found[consumer.of].producers.push_back({place[c], consumer.delay});
    }
  }
  for (size_t c = 0; c < found.size(); ++c) {
    classes[place[c]] = std::move(found[c]);
  }
  for (const int32_t c : found_of) class_of.push_back(place[c]);
  capacity = FlatGraph(graph).capacity;
}

ModuloSearch::ModuloSearch(const MeanMicrobatch& mean)
    : mean_(&mean),
      slots_(mean.classes.size(), 0),
      producers_(mean.classes.size()),
      of_rank_(mean.capacity.size()),
      pause_(mean.classes.size(), 0),
      best_pause_(pause_),
      start_(pause_),
      best_start_(pause_),
      busy_(mean.capacity.size()) {
  double total = 0;
  std::vector<double> work(mean.capacity.size(), 0);
  for (size_t c = 0; c < mean.classes.size(); ++c) {
    const MeanMicrobatch::TaskClass& task = mean.classes[c];
    of_rank_[task.rank].push_back(static_cast<int32_t>(c));
    total += static_cast<double>(task.duration);
    work[task.rank] += static_cast<double>(task.duration);
  }
  // Takes long slots, as more schedules are near each other then, if they round
  // little; half the slots of the longest period must be enough for the busiest
  // rank.
  const double mean_task = total / static_cast<double>(mean.classes.size());
  const double shortest =
      *std::max_element(work.begin(), work.end()) / (kMaxSlots / 2);
  double least = std::numeric_limits<double>::infinity();
  for (const double slots : {0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0}) {
    const double slot = std::ceil(std::max({1.0, mean_task / slots, shortest}));
    double cost = kCostOfFineness * slots * total;
    for (const MeanMicrobatch::TaskClass& task : mean.classes) {
      const auto d = static_cast<double>(task.duration);
      cost += std::abs(d - slot * std::round(d / slot));
    }
    if (cost < least) {
      least = cost;
      slot_ = static_cast<int64_t>(slot);
    }
  }
  for (size_t c = 0; c < slots_.size(); ++c) {
    slots_[c] =
        static_cast<int32_t>((mean.classes[c].duration + slot_ / 2) / slot_);
  }
  for (size_t c = 0; c < slots_.size(); ++c) {
    for (const auto& producer : mean.classes[c].producers) {
      producers_[c].push_back(
          {producer.of,
           static_cast<int32_t>((producer.delay + slot_ / 2) / slot_)});
    }
    start_[c] = Earliest(static_cast<int32_t>(c), start_);
    longest_chain_ = std::max(longest_chain_, start_[c] + slots_[c]);
  }
  least_period_ = 1;
  for (size_t r = 0; r < of_rank_.size(); ++r) {
    int32_t busy = 0;
    for (const int32_t c : of_rank_[r]) busy += slots_[c];
    least_period_ = std::max(least_period_, busy);
    if (mean.capacity[r] >= kNoLimit || mean.capacity[r] <= 0) continue;
    const double slots = LeastArea(static_cast<int32_t>(r)) /
                         static_cast<double>(mean.capacity[r]);
    least_period_ =
        std::max(least_period_, static_cast<int32_t>(std::ceil(slots - 1e-9)));
  }
}

int32_t ModuloSearch::Earliest(int32_t task_class,
                               absl::Span<const int32_t> start) const {
  int32_t earliest = 0;
  for (const Link& link : producers_[task_class]) {
    earliest =
        std::max(earliest, start[link.of] + slots_[link.of] + link.delay);
  }
  return earliest;
}

double ModuloSearch::LeastArea(int32_t rank) const {
  // Bytes x time = the sum of bytes given back x their ends, less that of bytes
  // taken x their starts. So taken bytes may be paired with given ones in any
  // way, and are at least as long apart as the longest path between the two.
  // Nested pairs have long ones: the last taker has the nearest giver.
  const std::vector<MeanMicrobatch::TaskClass>& classes = mean_->classes;
  const size_t n = classes.size();
  std::vector<int64_t> given(n, 0);
  for (const int32_t c : of_rank_[rank]) given[c] = classes[c].free;
  std::vector<int32_t> reach(n);
  double area = 0;
  for (auto at = of_rank_[rank].rbegin(); at != of_rank_[rank].rend(); ++at) {
    int64_t left = classes[*at].alloc;
    if (left <= 0) continue;
    // The longest path from the taker's start to each end; -1: none.
    std::fill(reach.begin(), reach.end(), -1);
    reach[*at] = slots_[*at];
    for (size_t c = static_cast<size_t>(*at) + 1; c < n; ++c) {
      for (const Link& link : producers_[c]) {
        if (reach[link.of] < 0) continue;
        reach[c] = std::max(reach[c], reach[link.of] + link.delay + slots_[c]);
      }
    }
    while (left > 0) {
      int32_t nearest = -1;
      for (const int32_t c : of_rank_[rank]) {
        if (given[c] > 0 && reach[c] >= 0 &&
            (nearest < 0 || reach[c] < reach[nearest])) {
          nearest = c;
        }
      }
      if (nearest < 0) break;
      const int64_t part = std::min(left, given[nearest]);
      area += static_cast<double>(part) * reach[nearest];
      given[nearest] -= part;
      left -= part;
    }
  }
  return area;
}

bool ModuloSearch::PlaceAll(int32_t period, bool weight_grads) {
  const MeanMicrobatch& m = *mean_;
  for (size_t c = 0; c < m.classes.size(); ++c) {
    const MeanMicrobatch::TaskClass& task = m.classes[c];
    if (task.weight_grad != weight_grads) continue;
    int32_t earliest = Earliest(static_cast<int32_t>(c), start_);
    earliest += pause_[c];
    if (slots_[c] > 0) {
      const int32_t wait = Take(earliest, slots_[c], period, &busy_[task.rank]);
      if (wait < 0) return false;
      earliest += wait;
    }
    start_[c] = earliest;
  }
  return true;
}

double ModuloSearch::Overflow(int32_t rank, int32_t period) const {
  const int64_t capacity = mean_->capacity[rank];
  if (capacity >= kNoLimit) return 0;
  int64_t held = 0;
  std::array<int64_t, kMaxSlots> change{};
  for (const int32_t c : of_rank_[rank]) {
    const MeanMicrobatch::TaskClass& task = mean_->classes[c];
    const int32_t start = start_[c];
    const int32_t end = start + slots_[c];
    // A task that lies whole periods behind was done by as many microbatches.
    held += end / period * task.free - start / period * task.alloc;
    change[start % period] += task.alloc;
    change[end % period] -= task.free;
  }
  double over = 0;
  for (int32_t slot = 0; slot < period; ++slot) {
    held += change[slot];
    if (held > capacity) over += static_cast<double>(held - capacity);
  }
  return over;
}

bool ModuloSearch::Build(int32_t period, Score* score) {
  std::fill(busy_.begin(), busy_.end(), 0);
  if (!PlaceAll(period, false) || !PlaceAll(period, true)) return false;
  *score = {};
  for (size_t r = 0; r < busy_.size(); ++r) {
    score->overflow += Overflow(static_cast<int32_t>(r), period);
  }
  for (size_t c = 0; c < start_.size(); ++c) {
    score->latency = std::max(score->latency, start_[c] + slots_[c]);
  }
  return true;
}

bool ModuloSearch::Search(int32_t period, int64_t changes, Random& random) {
  const auto n = static_cast<int64_t>(pause_.size());
  pause_ = best_pause_;
  if (period != best_period_) {
    best_period_ = period;
    best_ = {std::numeric_limits<double>::infinity(), 0};
  }
  for (int64_t i = 0; i < changes; ++i) {
    Score score;
    if (Build(period, &score) && score <= best_) {
      best_ = score;
      best_pause_ = pause_;
      best_start_ = start_;
      if (score.overflow == 0) return true;
    } else {
      pause_ = best_pause_;
    }
    for (int64_t k = random.Below(3); k >= 0; --k) {
      int32_t& pause = pause_[random.Below(n)];
      const auto by = static_cast<int32_t>(random.Between(-2, 2));
      pause = random.Below(2) == 0 ? 0 : std::clamp(pause + by, 0, period);
    }
  }
  return false;
}

}  // namespace pipeloom::planner
