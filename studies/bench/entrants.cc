#include "studies/bench/entrants.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::studies {

std::string BudgetLabel(Duration budget) {
  if (budget >= Seconds(1)) return absl::StrFormat("%g s", ToSeconds(budget));
  return absl::StrFormat("%g ms", ToMicroseconds(budget) / 1000);
}

std::string Entrant::label() const {
  if (budget == kZero) return schedule;
  return absl::StrCat(schedule, " ", BudgetLabel(budget));
}

std::vector<Entrant> EntrantsOf(const std::vector<BenchResult>& results) {
  std::vector<Entrant> entrants;
  for (const BenchResult& result : results) {
    for (const BenchRow& row : result.rows) {
      if (std::none_of(entrants.begin(), entrants.end(),
                       [&](const Entrant& e) { return e.Is(row); })) {
        entrants.push_back({row.schedule, row.budget});
      }
    }
  }
  return entrants;
}

std::vector<double> ExcessOf(const Entrant& entrant,
                             const std::vector<BenchResult>& results) {
  std::vector<double> excess;
  for (const BenchResult& result : results) {
    if (const BenchRow* row = result.Find(entrant.schedule, entrant.budget)) {
      excess.push_back(
          std::max(0.0, ExcessRatio(row->step_time, result.best())));
    }
  }
  std::sort(excess.begin(), excess.end());
  return excess;
}

bool Entrant::Is(const BenchRow& row) const {
  return row.schedule == schedule && row.budget == budget;
}

double ExcessRatio(Duration time, Duration least) {
  return least > kZero ? ToSeconds(time) / ToSeconds(least) - 1 : 0;
}

const BenchRow* BestClassic(const BenchResult& result) {
  const BenchRow* best = nullptr;
  for (const BenchRow& row : result.rows) {
    if (!row.status.ok() || row.budget > kZero) continue;
    if (best == nullptr || row.step_time < best->step_time) best = &row;
  }
  return best;
}

}  // namespace pipeloom::studies
