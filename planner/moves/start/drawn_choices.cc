#include "planner/moves/start/drawn_choices.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace pipeloom::planner {
namespace {

// Random changes of a choice that is not drawn anew.
constexpr int64_t kChanges = 10;

}  // namespace

std::vector<int32_t> DrawOrder(const OrderUnits& units, Random& random) {
  std::vector<double> load(units.period.size(), -1);
  const bool all = random.Below(2) == 0;
  const double noise = 0.4 * random.Unit();
  for (int32_t u = 0; u < units.num_units(); ++u) {
    double& sum = load[units.microbatch[u]];
    if (sum >= 0 && !all) continue;
    if (sum < 0) sum = 0;
    sum += static_cast<double>(units.load[u]);
  }
  for (double& l : load) l *= 1 + noise * (random.Unit() - 0.5);
  std::vector<int32_t> order(static_cast<size_t>(units.num_units()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return load[units.microbatch[a]] > load[units.microbatch[b]];
  });
  const auto n = static_cast<int64_t>(order.size());
  const int64_t light = random.Below(n / 4 + 1);
  std::rotate(order.begin(), order.end() - light, order.end());
  return order;
}

OrderChoice DrawChoice(const OrderUnits& units,
                       const std::vector<Candidate>& bases, Random& random) {
  OrderChoice choice{.order = DrawOrder(units, random)};
  if (random.Below(2) == 0) {
    choice.prefer =
        random.Below(2) == 0 ? Prefer::kBackward : Prefer::kAlternate;
    choice.patience = 0.5 * static_cast<double>(random.Below(3));
  } else if (!bases.empty()) {
    choice = bases[random.Below(static_cast<int64_t>(bases.size()))].choice;
    for (int64_t k = 0; k < kChanges; ++k) Perturb(&choice, random);
  }
  if (random.Below(2) == 0) {
    choice.capacity_ratio = 0.2 + 0.1 * static_cast<double>(random.Below(8));
  }
  return choice;
}

OrderChoice DrawSpread(const std::vector<OrderChoice>& spread, Random& random) {
  OrderChoice choice =
      spread[random.Below(static_cast<int64_t>(spread.size()))];
  if (random.Below(2) == 0) {
    for (auto i = static_cast<int64_t>(choice.order.size()) - 1; i > 0; --i) {
      std::swap(choice.order[i], choice.order[random.Below(i + 1)]);
    }
  } else {
    for (int64_t k = 0; k < kChanges; ++k) Perturb(&choice, random);
  }
  choice.pattern.period = 0.2 * static_cast<double>(random.Below(6));
  const double stretch = 0.5 * static_cast<double>(1 + random.Below(8));
  for (auto& pass : choice.pattern.stretch) {
    std::fill(std::begin(pass), std::end(pass), stretch);
  }
  return choice;
}

void SweepDrawn(int32_t number, SearchState& state,
                const SearchBudget& budget) {
  std::vector<int32_t> start;
  for (int32_t i = 0; i < number && state.MayGoOn(budget); ++i) {
    if (state.TryChoice(DrawSpread(*state.space().spread, state.random())) >=
        kNoLimit) {
      continue;
    }
    start.assign(state.LastSequence().begin(), state.LastSequence().end());
    state.Sweep(start);
  }
}

}  // namespace pipeloom::planner
