#include "planner/moves/start/try_portfolio.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

constexpr size_t kMaxBases = 2;  // In GoodChoices.
constexpr int kChoices = 8;      // Tried in a turn.
// On large limited graphs only the best of so many choices is relisted and
// polished, as that takes a fifth of a short budget.
constexpr size_t kFirstChoices = 26;

}  // namespace

void TryPortfolio::Run(const SearchBudget& budget) {
  SearchState& s = state();
  while (!inherited_.empty() && s.MayGoOn(budget)) {
    Try(inherited_.back());
    inherited_.pop_back();
  }
  const std::vector<OrderChoice>& portfolio = *s.space().portfolio;
  for (int i = 0; i < kChoices && next_ < portfolio.size(); ++i) {
    if (!s.MayGoOn(budget)) return;
    const int64_t before = s.since_start().time;
    const OrderChoice& choice = portfolio[next_];
    next_ += s.shares();
    Try(choice);
    found_better_ = found_better_ || s.since_start().time < before;
  }
  if (s.is_large_and_limited() &&
      next_ < std::min(kFirstChoices, portfolio.size())) {
    return;
  }
  if (!std::exchange(found_better_, false)) return;
  s.RelistBest(budget);
  // Polishes here, as on large graphs the portfolio takes all the time.
  if (s.is_large()) {
    const std::vector<int32_t> start = s.since_start().sequence;
    s.Polish(start, SearchState::kShortPolish, budget);
  }
}

void TryPortfolio::Try(const OrderChoice& choice) {
  SearchState& s = state();
  std::vector<Candidate>& bases = s.choices().bases;
  Candidate& home = s.choices().home;
  const bool may_be_home = s.keeps_pattern() && IsPattern(choice.rule);
  int64_t worth = may_be_home ? home.time : 0;
  if (choice.rule != PriorityRule::kTail) {
    worth = std::max(worth,
                     bases.size() < kMaxBases ? kNoLimit : bases.back().time);
  }
  const int64_t time = s.TryChoice(choice, worth);
  if (may_be_home && time < home.time) {
    home = {.time = time, .choice = choice};
  }
  if (choice.rule == PriorityRule::kTail) return;
  const auto at = std::upper_bound(
      bases.begin(), bases.end(), time,
      [](int64_t t, const Candidate& c) { return t < c.time; });
  bases.insert(at, {.time = time, .choice = choice});
  if (bases.size() > kMaxBases) bases.pop_back();
}

void TryPortfolio::Inherit(const Move& earlier) {
  const auto& other = static_cast<const TryPortfolio&>(earlier);
  next_ = other.next_;
  inherited_ = other.inherited_;
  const GoodChoices& good = other.state().choices();
  for (const Candidate& base : good.bases) inherited_.push_back(base.choice);
  if (!good.home.choice.order.empty()) inherited_.push_back(good.home.choice);
}

}  // namespace pipeloom::planner
