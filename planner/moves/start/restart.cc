#include "planner/moves/start/restart.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "planner/moves/start/drawn_choices.h"

namespace pipeloom::planner {
namespace {

// The share of starts that mix two former best answers, and the number of
// choices tried for any other start; also for steps with a dominant microbatch.
constexpr double kMixed = 0.5;
constexpr double kMixedDominant = 0.8;
constexpr int32_t kStarts = 8;
constexpr int32_t kStartsDominant = 20;

}  // namespace

void Restart::Run(const SearchBudget& budget) {
  SearchState& s = state();
  s.LeaveBest();
  if (s.elites().size() >= 2 &&
      s.random().Unit() < (s.has_dominant() ? kMixedDominant : kMixed)) {
    MixElites();
  } else if (s.has_dominant()) {
    SweepDrawn(kStartsDominant, s, budget);
  } else {
    for (int32_t i = 0; i < kStarts; ++i) {
      s.TryChoice(DrawChoice(s.units(), s.choices().bases, s.random()),
                  s.since_start().time);
    }
  }
  const std::vector<int32_t> start = s.since_start().sequence;
  s.Polish(start, SearchState::kPolish, budget);
}

void Restart::MixElites() {
  SearchState& s = state();
  Random& random = s.random();
  Retimer& retimer = s.retimer();
  const int32_t tasks = s.graph().num_tasks;
  const auto n = static_cast<int64_t>(s.elites().size());
  const int64_t a = random.Below(n);
  const int64_t b = (a + 1 + random.Below(n - 1)) % n;
  const double share = 0.3 + 0.4 * random.Unit();
  std::vector<double> key(static_cast<size_t>(tasks));
  retimer.Retime(s.elites()[a].sequence);
  for (int32_t t = 0; t < tasks; ++t) {
    key[t] = share * static_cast<double>(retimer.start(t));
  }
  retimer.Retime(s.elites()[b].sequence);
  for (int32_t t = 0; t < tasks; ++t) {
    key[t] += (1 - share) * static_cast<double>(retimer.start(t));
  }
  std::vector<int32_t> order(static_cast<size_t>(tasks));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    return key[x] != key[y] ? key[x] < key[y] : x < y;
  });
  ListScheduler& lists = s.lists();
  const int64_t time =
      lists.Run({.order = order, .prefer = Prefer::kPriority, .patience = 0.5});
  s.Spend(1, SearchState::kListCost);
  s.Keep(time, lists.sequence());
  if (!s.has_dominant()) return;
  const std::vector<int32_t> mixed(lists.sequence().begin(),
                                   lists.sequence().end());
  s.Sweep(mixed);
}

}  // namespace pipeloom::planner
