#include "planner/search/order_portfolio.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "planner/moves/search_state.h"
#include "planner/search/first_choices.h"

namespace pipeloom::planner {
namespace {

// Up to so many tasks there is time for the whole portfolio even in 100 ms, and
// more choices lead the search no further (multimodal p4 m16: 0.4 % longer).
constexpr int32_t kSmallGraph = 600;

// On large limited graphs other moves gain more in the time of the choices
// after the first ones. Chosen on the 58 such problems of
// `pipeloom bench --random train:260`: steps of 100 ms are 3.0 instead of 3.4 %
// longer than those of 3 s, those of 1 s 0.45 instead of 0.5 %.
constexpr size_t kMostOfLarge = 96;

// OrderChoice::reserve of the choices of a kind under limited memory, in turns.
constexpr double kReserves[] = {0.5, 0, 0.75, 0.25};

// Appends orders like those of the V schedules: forwards and backwards of the
// two halves of a microbatch go down and up at these paces (stretches of
// forward chunks 0 and 1, then of backwards in the order in which they come).
void AppendVPatterns(const std::vector<int32_t>& order,
                     std::vector<OrderChoice>* portfolio) {
  constexpr double kPaces[][4] = {
      {1, 1, 1, 1}, {2, 1, 2, 1}, {1.5, 1, 1.5, 1}, {2, 2, 2, 2},
      {1, 2, 1, 2}, {2, 1, 1, 2}, {3, 1, 3, 1},     {2, 4, 1.5, 3},
      {3, 2, 3, 2}, {2, 1, 1, 1}, {1, 1, 2, 1},     {4, 2, 4, 2},
  };
  for (const double lag : {3.0, 4.0, 1.0, 2.0}) {
    for (const auto& pace : kPaces) {
      OrderChoice choice{.order = order, .rule = PriorityRule::kDue};
      for (int i = 0; i < Pattern::kChunks; ++i) {
        choice.pattern.stretch[0][i] = pace[i % 2];
        choice.pattern.stretch[1][i] = pace[2 + i % 2];
        choice.pattern.lag[i] = lag;
      }
      portfolio->push_back(std::move(choice));
    }
  }
}

std::vector<OrderChoice> RuleChoices(const std::vector<int32_t>& order,
                                     const std::vector<PriorityRule>& rules,
                                     bool idealised, double capacity,
                                     double patience) {
  std::vector<OrderChoice> choices;
  for (const Prefer prefer :
       {Prefer::kBackward, Prefer::kAlternate, Prefer::kForward}) {
    for (const PriorityRule rule : rules) {
      choices.push_back({.order = order,
                         .rule = rule,
                         .prefer = prefer,
                         .patience = patience,
                         .idealised = idealised,
                         .capacity_ratio = capacity});
    }
  }
  return choices;
}

// Appends target times that hold memory for less time: a few that are good for
// multimodal steps under tight memory, then random ones.
void AppendPeriodicPatterns(const std::vector<int32_t>& order,
                            std::vector<OrderChoice>* portfolio) {
  const auto add = [&](const Pattern& pattern, double patience,
                       bool idealised) {
    portfolio->push_back({.order = order,
                          .rule = PriorityRule::kPeriodic,
                          .prefer = Prefer::kPriority,
                          .patience = patience,
                          .idealised = idealised,
                          .pattern = pattern});
  };
  add({}, 1, false);
  add({.stretch = {{3.25, 1, 1.75, 1}, {1, 2.5, 3.25, 3.25}}}, 1, false);
  add({.period = 0.95, .stretch = {{1, 1, 1, 1}, {1, 3, 2.25, 1.25}}}, 1,
      false);
  add({.period = 0.85}, 0, true);
  add({.period = 0.9, .stretch = {{1, 4, 1, 1}, {1, 3.75, 1, 1.25}}}, 1, false);
  Random random(1);
  for (int i = 0; i < 64; ++i) {
    Pattern pattern;
    for (int k = 0; k < 6; ++k) PerturbPattern(&pattern, random);
    add(pattern, i % 3 == 0 ? 0.0 : 1.0, i % 4 < 2);
  }
}

// Returns orders of microbatches by load: by that of all their units, and by
// that of their first module.
std::vector<OrderChoice> LoadOrders(const OrderUnits& units) {
  std::vector<OrderChoice> choices;
  if (units.HasEqualLoads()) return choices;
  std::vector<int32_t> by_id(static_cast<size_t>(units.num_units()));
  std::iota(by_id.begin(), by_id.end(), 0);
  std::vector<int64_t> total(units.period.size(), 0);
  std::vector<int64_t> first(units.period.size(), -1);
  for (int32_t u = 0; u < units.num_units(); ++u) {
    total[units.microbatch[u]] += units.load[u];
    if (first[units.microbatch[u]] < 0) {
      first[units.microbatch[u]] = units.load[u];
    }
  }
  for (const double patience : {0.0, 0.5}) {
    for (const Prefer prefer : {Prefer::kBackward, Prefer::kAlternate}) {
      for (const std::vector<int64_t>* load : {&total, &first}) {
        for (const bool heavy_first : {true, false}) {
          std::vector<int32_t> order = by_id;
          std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            const int64_t x = (*load)[units.microbatch[a]];
            const int64_t y = (*load)[units.microbatch[b]];
            if (x != y) return heavy_first ? x > y : x < y;
            return a < b;
          });
          choices.push_back({.order = std::move(order),
                             .rule = PriorityRule::kUnit,
                             .prefer = prefer,
                             .patience = patience});
        }
      }
    }
  }
  return choices;
}

}  // namespace

std::vector<OrderChoice> SpreadChoices(const OrderUnits& units) {
  std::vector<int64_t> total(units.period.size(), 0);
  for (int32_t u = 0; u < units.num_units(); ++u) {
    total[units.microbatch[u]] += units.load[u];
  }
  const int64_t all = std::accumulate(total.begin(), total.end(), int64_t{0});
  const int64_t most = *std::max_element(total.begin(), total.end());
  if (most * static_cast<int64_t>(total.size()) < 2 * all) return {};
  // Paces of the microbatches (`period`, a share of the busiest rank's work on
  // them) and of the tasks in them; found on steps with one dominant
  // microbatch.
  constexpr struct {
    bool long_first;
    double period;
    double stretch;
  } kPaces[] = {{false, 0, 1},   {false, 0.6, 4}, {false, 0.8, 1},
                {true, 0.4, 4},  {true, 0, 1},    {false, 0.4, 2},
                {false, 0.2, 4}, {true, 0.8, 2}};
  std::vector<OrderChoice> choices;
  for (const auto& pace : kPaces) {
    OrderChoice choice{.rule = PriorityRule::kPeriodic,
                       .prefer = Prefer::kPriority};
    choice.order.resize(static_cast<size_t>(units.num_units()));
    std::iota(choice.order.begin(), choice.order.end(), 0);
    std::sort(choice.order.begin(), choice.order.end(),
              [&](int32_t a, int32_t b) {
                const int64_t x = total[units.microbatch[a]];
                const int64_t y = total[units.microbatch[b]];
                if (x != y) return pace.long_first ? x > y : x < y;
                return a < b;
              });
    choice.pattern.period = pace.period;
    for (auto& pass : choice.pattern.stretch) {
      std::fill(std::begin(pass), std::end(pass), pace.stretch);
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::vector<OrderChoice> OrderPortfolio(const FlatGraph& graph,
                                        const OrderUnits& units) {
  std::vector<int32_t> by_id(static_cast<size_t>(units.num_units()));
  std::iota(by_id.begin(), by_id.end(), 0);
  std::vector<PriorityRule> rules = {PriorityRule::kUnit};
  if (units.num_chunks > 1) {
    rules.push_back(PriorityRule::kGrouped);
    rules.push_back(PriorityRule::kBreadth);
  }
  const bool limited = std::any_of(graph.capacity.begin(), graph.capacity.end(),
                                   [](int64_t c) { return c != kNoLimit; });
  std::vector<OrderChoice> plain = RuleChoices(by_id, rules, false, 1, 0);
  std::vector<OrderChoice> due;
  std::vector<OrderChoice> periodic;
  if (limited) {
    AppendVPatterns(by_id, &due);
    AppendPeriodicPatterns(by_id, &periodic);
  }
  std::vector<OrderChoice> held_back;
  for (const double capacity : {1.0, 0.75, 0.5}) {
    for (const double patience : {0.0, 0.5, 1.0}) {
      if (capacity < 1 || patience > 0) {
        const std::vector<OrderChoice> choices =
            RuleChoices(by_id, rules, false, capacity, patience);
        held_back.insert(held_back.end(), choices.begin(), choices.end());
      }
      held_back.push_back({.order = by_id,
                           .rule = PriorityRule::kTail,
                           .prefer = Prefer::kBackward,
                           .patience = patience,
                           .capacity_ratio = capacity});
    }
    held_back.push_back({.order = by_id,
                         .rule = PriorityRule::kTail,
                         .prefer = Prefer::kPriority,
                         .patience = 0,
                         .capacity_ratio = capacity});
  }
  // First those that were chosen on random pipelines, after one of each of the
  // two kinds that are good for equal microbatches; then kinds in turns, the
  // most promising choice of each kind first, as there may not be time for all.
  std::vector<std::vector<OrderChoice>> kinds = {
      std::move(plain),
      std::move(periodic),
      LoadOrders(units),
      std::move(due),
      RuleChoices(by_id, rules, true, 1, 0),
      std::move(held_back)};
  std::vector<OrderChoice> portfolio;
  const auto take = [&](size_t kind, size_t i) {
    if (i >= kinds[kind].size()) return;
    portfolio.push_back(std::move(kinds[kind][i]));
    if (limited) portfolio.back().reserve = kReserves[i % 4];
  };
  take(0, 0);
  take(1, 0);
  if (limited || graph.num_tasks > kSmallGraph) {
    for (OrderChoice& choice : FirstChoices(units, limited)) {
      portfolio.push_back(std::move(choice));
    }
  }
  for (size_t i = 0;; ++i) {
    const size_t before = portfolio.size();
    for (size_t kind = i == 0 ? 2 : 0; kind < kinds.size(); ++kind) {
      take(kind, i);
    }
    if (portfolio.size() == before) break;
  }
  if (limited && graph.num_tasks >= SearchState::kLargeIfLimited &&
      portfolio.size() > kMostOfLarge) {
    portfolio.resize(kMostOfLarge);
  }
  return portfolio;
}

}  // namespace pipeloom::planner
