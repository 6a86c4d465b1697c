#include "planner/search/first_choices.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/types/span.h"
#include "planner/core/microbatch_order.h"

namespace pipeloom::planner {
namespace {

using enum PriorityRule;
using enum Prefer;

// The order of microbatches by their work.
enum class ByWork : uint8_t {
  kAsGiven,
  kHeavyFirst,
  kLightFirst,
  kHeavyMiddle,
};
using enum ByWork;

struct FirstChoice {
  ByWork order = kAsGiven;
  PriorityRule rule = kUnit;
  Prefer prefer = kBackward;
  double patience = 0;
  double capacity_ratio = 1;
  double reserve = 0;
  bool idealised = false;
  Pattern pattern{};
};

// Chosen on the problems of `bench --random train:600`, one after another, each
// as the one that shortens the mean of the best times most: first of 1,328
// random choices; those for limited memory then again of 24 such ones, each
// with five reserves (docs/evaluation/search_parts.md).
// clang-format off
constexpr FirstChoice kLimited[] = {
    {kHeavyMiddle, kPeriodic, kAlternate, 0.5, 1, 0.5, false, {1, {{1, 2, 0.5, 1}, {2, 2.5, 2.5, 2.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kForward, 0.5, 1, 0.75, false, {0.95, {{0.5, 0.5, 0.5, 0.5}, {1, 1, 1, 1}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0.25, 1, 0.25, false, {0.85, {{1, 1, 1, 1}, {1, 1.75, 1, 1}}, {1, 5, 1, 1}}},
    {kAsGiven, kPeriodic, kForward, 0.5, 1, 1, false, {0.4, {{1, 1, 1, 0.75}, {1.75, 3.5, 3.5, 0.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 1, 1, 0, false, {0.9, {{1, 1, 1, 1}, {3.5, 3.5, 3.5, 3.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kUnit, kForward, 0.25, 1, 0.5, false},
    {kHeavyMiddle, kPeriodic, kAlternate, 0.5, 1, 1, false, {1, {{1, 2, 0.5, 1}, {2, 2.5, 2.5, 2.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kForward, 1, 1, 0.5, false, {1.4, {{1, 1, 1, 2}, {3.5, 3.5, 3.5, 3.5}}, {1, 1, 1, 1}}},
    {kLightFirst, kBreadth, kForward, 0, 1, 1, false},
    {kAsGiven, kPeriodic, kPriority, 0.5, 1, 1, true, {1.15, {{0.5, 0.5, 0.5, 0.5}, {4, 1, 2, 2.75}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0.5, 1, 0.25, false, {1, {{1, 2, 0.5, 1}, {2, 2.5, 2.5, 2.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0, 1, 0.5, false, {0.9, {{1, 1, 1, 1}, {1.5, 3.75, 1.5, 1.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0.25, 1, 0.5, false, {0.85, {{1, 1, 1, 1}, {1, 1.75, 1, 1}}, {1, 5, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kForward, 0.5, 1, 0.5, false, {0.95, {{0.5, 0.5, 0.5, 0.5}, {1, 1, 1, 1}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kPriority, 0.25, 1, 0.75, false, {1, {{1, 1, 1, 1}, {1, 2.5, 1, 1}}, {5.5, 1.5, 1, 1}}},
    {kLightFirst, kPeriodic, kAlternate, 0.5, 1, 0.5, false, {1.2, {{1, 4, 1, 1}, {1, 1, 1, 1}}, {1.5, 1, 1, 1}}},
    {kHeavyMiddle, kUnit, kForward, 0.25, 1, 0.25, false},
    {kAsGiven, kPeriodic, kForward, 0.5, 1, 0.5, false, {0.4, {{1, 1, 1, 0.75}, {1.75, 3.5, 3.5, 0.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 1, 1, 0.25, false, {1, {{1, 1, 1, 1}, {2, 2.75, 2, 3.25}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kForward, 1, 1, 0.75, false, {1.4, {{1, 1, 1, 2}, {3.5, 3.5, 3.5, 3.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0, 1, 0.25, false, {0.9, {{1, 1, 1, 1}, {1.5, 3.75, 1.5, 1.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kForward, 0.5, 1, 0.25, false, {0.95, {{0.5, 0.5, 0.5, 0.5}, {1, 1, 1, 1}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0.25, 1, 0.25, false, {1.05, {{1, 1, 1, 1}, {2, 0.5, 2, 2}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 1, 1, 0.5, false, {0.3, {{0.5, 2, 0.5, 0.5}, {1.25, 1, 1, 1}}, {1, 1, 3.5, 1}}},
};
constexpr FirstChoice kUnlimited[] = {
    {kHeavyMiddle, kPeriodic, kAlternate, 0, 1, 0, false, {1, {{2, 3.75, 2, 3.5}, {3.5, 3.5, 3.5, 3.5}}, {1, 1, 1, 1}}},
    {kLightFirst, kBreadth, kForward, 0, 1, 0, false},
    {kAsGiven, kTail, kAlternate, 0.25, 1, 0, false},
    {kLightFirst, kPeriodic, kBackward, 0.5, 1, 0, false, {0.3, {{0.5, 1, 1, 1}, {1, 1, 1, 1}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kBreadth, kAlternate, 0.5, 1, 0, false},
    {kHeavyMiddle, kPeriodic, kForward, 0, 1, 0, false, {0.8, {{1, 1, 1.5, 1}, {0.5, 0.5, 0.5, 0.5}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kAlternate, 0.25, 1, 0, false, {0.9, {{1, 1, 1, 2.25}, {1, 1, 1, 3.75}}, {1, 1, 1, 1}}},
    {kAsGiven, kPeriodic, kAlternate, 0, 1, 0, false, {0.2, {{1.25, 1, 1, 1}, {1, 2.75, 1, 1}}, {1, 1, 1, 1}}},
    {kAsGiven, kTail, kForward, 0, 1, 0, false},
    {kLightFirst, kPeriodic, kForward, 0.25, 0.9, 0, false, {1, {{2.5, 2.5, 2.5, 1.75}, {1.25, 1, 1, 1}}, {1, 5, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kForward, 0.25, 1, 0, true, {0.8, {{1.5, 1.5, 1.5, 1.5}, {0.5, 3.5, 3, 3.5}}, {1, 1, 5, 1}}},
    {kHeavyMiddle, kBreadth, kBackward, 0, 1, 0, false},
    {kHeavyMiddle, kPeriodic, kAlternate, 0, 0.9, 0, false, {1.35, {{1.5, 1, 1, 1}, {3.5, 0.5, 3.5, 2.75}}, {1, 1, 1, 1}}},
    {kHeavyMiddle, kPeriodic, kPriority, 0, 1, 0, false, {1, {{0.5, 1, 2.75, 1}, {3.5, 1, 1, 1}}, {5.5, 1, 1, 1}}},
    {kLightFirst, kPeriodic, kForward, 0.25, 1, 0, true, {1.4, {{1, 2, 1, 1}, {2, 2, 2, 2}}, {1, 1, 1, 5}}},
    {kLightFirst, kBreadth, kBackward, 0.5, 1, 0, false},
};
// clang-format on

// Returns the units, with their microbatches in this order.
std::vector<int32_t> UnitsByWork(const OrderUnits& units, ByWork by) {
  if (by == kAsGiven) {
    std::vector<int32_t> by_id(units.load.size());
    std::iota(by_id.begin(), by_id.end(), 0);
    return by_id;
  }
  std::vector<int64_t> work(units.period.size(), 0);
  for (size_t u = 0; u < units.load.size(); ++u) {
    work[units.microbatch[u]] += units.load[u];
  }
  if (by == kHeavyMiddle) {
    return UnitsInOrder(HeavyMiddle(work), units.microbatch);
  }
  std::vector<int32_t> microbatches(work.size());
  std::iota(microbatches.begin(), microbatches.end(), 0);
  std::stable_sort(
      microbatches.begin(), microbatches.end(), [&](int32_t a, int32_t b) {
        return by == kHeavyFirst ? work[a] > work[b] : work[a] < work[b];
      });
  return UnitsInOrder(microbatches, units.microbatch);
}

}  // namespace

std::vector<OrderChoice> FirstChoices(const OrderUnits& units, bool limited) {
  std::vector<OrderChoice> choices;
  for (const FirstChoice& first : limited ? absl::MakeConstSpan(kLimited)
                                          : absl::MakeConstSpan(kUnlimited)) {
    choices.push_back({.order = UnitsByWork(units, first.order),
                       .rule = first.rule,
                       .prefer = first.prefer,
                       .patience = first.patience,
                       .idealised = first.idealised,
                       .pattern = first.pattern,
                       .capacity_ratio = first.capacity_ratio,
                       .reserve = first.reserve});
  }
  return choices;
}

}  // namespace pipeloom::planner
