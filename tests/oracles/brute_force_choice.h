// The best choice of one option of each group by trying everything: the slow
// second opinion on the knapsack and on 0/1 programs.
#ifndef PIPELOOM_TESTS_ORACLES_BRUTE_FORCE_CHOICE_H_
#define PIPELOOM_TESTS_ORACLES_BRUTE_FORCE_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/memory/integer_program.h"

namespace pipeloom::testing {

// Whether the choice keeps every limit.
inline bool KeepsLimits(const planner::IntegerProgram& program,
                        const std::vector<int32_t>& choice) {
  for (size_t row = 0; row < program.limits.size(); ++row) {
    int64_t used = 0;
    for (size_t g = 0; g < choice.size(); ++g) {
      const auto& option = program.groups[g][static_cast<size_t>(choice[g])];
      for (const planner::IntegerProgram::Use& use : option.uses) {
        if (use.first_row <= static_cast<int32_t>(row) &&
            static_cast<int32_t>(row) < use.end_row) {
          used += use.amount;
        }
      }
    }
    if (used > program.limits[row]) return false;
  }
  return true;
}

// The least cost; nullopt when no choice keeps the limits. Exponential.
inline std::optional<int64_t> BruteForceCost(
    const planner::IntegerProgram& program) {
  std::optional<int64_t> best;
  std::vector<int32_t> choice(program.groups.size(), 0);
  while (true) {
    int64_t cost = 0;
    for (size_t g = 0; g < choice.size(); ++g) {
      cost += program.groups[g][static_cast<size_t>(choice[g])].cost;
    }
    if ((!best.has_value() || cost < *best) && KeepsLimits(program, choice)) {
      best = cost;
    }
    size_t g = 0;
    for (; g < choice.size(); ++g) {
      if (++choice[g] < static_cast<int32_t>(program.groups[g].size())) break;
      choice[g] = 0;
    }
    if (g == choice.size()) return best;
  }
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ORACLES_BRUTE_FORCE_CHOICE_H_
