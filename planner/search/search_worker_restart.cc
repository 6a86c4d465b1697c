// Restarts of a worker: when nothing better is found for long, it keeps its
// best answer and begins anew.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "planner/search/search_worker.h"

namespace pipeloom::planner {
namespace {

// The number of best answers that are kept, the share of starts that mix two of
// them, and the number of choices tried for any other start; the last two also
// for steps with a dominant microbatch.
constexpr size_t kMaxElites = 8;
constexpr double kMixed = 0.5;
constexpr double kMixedDominant = 0.8;
constexpr int32_t kStarts = 8;
constexpr int32_t kStartsDominant = 20;
constexpr int64_t kStartChanges = 10;

}  // namespace

void SearchWorker::Restart(const SearchBudget& budget) {
  AddElite(best_, sequence_);
  restarted_ = true;
  stalled_cost_ = 0;
  best_ = std::numeric_limits<int64_t>::max();
  shaken_sequence_.clear();
  kicked_sequence_.clear();
  current_ = {};
  cycle_ = 0;
  const bool dominant = sweeps_ != nullptr;
  if (elites_.size() >= 2 &&
      random_.Unit() < (dominant ? kMixedDominant : kMixed)) {
    MixElites();
  } else if (dominant) {
    SweepDrawn(kStartsDominant, budget);
  } else {
    for (int32_t i = 0; i < kStarts; ++i) TryChoice(DrawChoice(), best_);
  }
  const std::vector<int32_t> start = sequence_;
  Polish(start, kPolish, budget);
}

void SearchWorker::SweepDrawn(int32_t number, const SearchBudget& budget) {
  std::vector<int32_t> start;
  for (int32_t i = 0; i < number && MayGoOn(budget); ++i) {
    if (TryChoice(DrawSpread()) >= kNoLimit) continue;
    start.assign(LastSequence().begin(), LastSequence().end());
    Sweep(start);
  }
}

void SearchWorker::AddElite(int64_t time, absl::Span<const int32_t> sequence) {
  if (time < top_) {
    top_ = time;
    top_sequence_.assign(sequence.begin(), sequence.end());
  }
  for (const Elite& elite : elites_) {
    if (elite.time == time && absl::MakeConstSpan(elite.sequence) == sequence) {
      return;
    }
  }
  if (elites_.size() < kMaxElites) {
    elites_.push_back({});
  } else {
    // The worst makes room.
    const auto worst = std::max_element(
        elites_.begin(), elites_.end(),
        [](const Elite& a, const Elite& b) { return a.time < b.time; });
    if (worst->time <= time) return;
    std::swap(*worst, elites_.back());
  }
  elites_.back() = {.time = time,
                    .sequence = {sequence.begin(), sequence.end()}};
}

void SearchWorker::MixElites() {
  const FlatGraph& g = *space_->graph;
  const auto n = static_cast<int64_t>(elites_.size());
  const int64_t a = random_.Below(n);
  const int64_t b = (a + 1 + random_.Below(n - 1)) % n;
  const double share = 0.3 + 0.4 * random_.Unit();
  std::vector<double> key(static_cast<size_t>(g.num_tasks));
  retimer_.Retime(elites_[a].sequence);
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    key[t] = share * static_cast<double>(retimer_.start(t));
  }
  retimer_.Retime(elites_[b].sequence);
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    key[t] += (1 - share) * static_cast<double>(retimer_.start(t));
  }
  std::vector<int32_t> order(static_cast<size_t>(g.num_tasks));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    return key[x] != key[y] ? key[x] < key[y] : x < y;
  });
  ListScheduler& lists = evaluator_.scheduler();
  const int64_t time =
      lists.Run({.order = order, .prefer = Prefer::kPriority, .patience = 0.5});
  ++evaluations_;
  cost_ += kListCost;
  Keep(time, lists.sequence());
  if (sweeps_ == nullptr) return;
  const std::vector<int32_t> mixed(lists.sequence().begin(),
                                   lists.sequence().end());
  Sweep(mixed);
}

OrderChoice SearchWorker::DrawSpread() {
  const std::vector<OrderChoice>& spread = *space_->spread;
  OrderChoice choice =
      spread[random_.Below(static_cast<int64_t>(spread.size()))];
  if (random_.Below(2) == 0) {
    for (auto i = static_cast<int64_t>(choice.order.size()) - 1; i > 0; --i) {
      std::swap(choice.order[i], choice.order[random_.Below(i + 1)]);
    }
  } else {
    for (int64_t k = 0; k < kStartChanges; ++k) Perturb(&choice, random_);
  }
  choice.pattern.period = 0.2 * static_cast<double>(random_.Below(6));
  const double stretch = 0.5 * static_cast<double>(1 + random_.Below(8));
  for (auto& pass : choice.pattern.stretch) {
    std::fill(std::begin(pass), std::end(pass), stretch);
  }
  return choice;
}

OrderChoice SearchWorker::DrawChoice() {
  OrderChoice choice{.order = DrawOrder()};
  if (random_.Below(2) == 0) {
    choice.prefer =
        random_.Below(2) == 0 ? Prefer::kBackward : Prefer::kAlternate;
    choice.patience = 0.5 * static_cast<double>(random_.Below(3));
  } else if (!bases_.empty()) {
    choice = bases_[random_.Below(static_cast<int64_t>(bases_.size()))].choice;
    for (int64_t k = 0; k < kStartChanges; ++k) Perturb(&choice, random_);
  }
  if (random_.Below(2) == 0) {
    choice.capacity_ratio = 0.2 + 0.1 * static_cast<double>(random_.Below(8));
  }
  return choice;
}

std::vector<int32_t> SearchWorker::DrawOrder() {
  const OrderUnits& units = *space_->units;
  std::vector<double> load(units.period.size(), -1);
  const bool all = random_.Below(2) == 0;
  const double noise = 0.4 * random_.Unit();
  for (int32_t u = 0; u < units.num_units(); ++u) {
    double& sum = load[units.microbatch[u]];
    if (sum >= 0 && !all) continue;
    if (sum < 0) sum = 0;
    sum += static_cast<double>(units.load[u]);
  }
  for (double& l : load) l *= 1 + noise * (random_.Unit() - 0.5);
  std::vector<int32_t> order(static_cast<size_t>(units.num_units()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return load[units.microbatch[a]] > load[units.microbatch[b]];
  });
  const auto n = static_cast<int64_t>(order.size());
  const int64_t light = random_.Below(n / 4 + 1);
  std::rotate(order.begin(), order.end() - light, order.end());
  return order;
}

}  // namespace pipeloom::planner
