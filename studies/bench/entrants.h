// The ranking of the schedules of a benchmark.
#ifndef PIPELOOM_STUDIES_BENCH_ENTRANTS_H_
#define PIPELOOM_STUDIES_BENCH_ENTRANTS_H_

#include <string>
#include <vector>

#include "base/units.h"
#include "studies/bench/bench_row.h"
#include "studies/bench/bench_runs.h"

namespace pipeloom::studies {

// Returns for example "10 ms" or "1 s".
std::string BudgetLabel(Duration budget);

// A schedule with the time budget that it was given.
struct Entrant {
  std::string schedule{};
  Duration budget{};
  // Returns for example "pipeloom 100 ms" or "1f1b".
  std::string label() const;
  // Returns whether the row is an outcome of this entrant.
  bool Is(const BenchRow& row) const;
};
// Returns all entrants that have a row, in order of appearance.
std::vector<Entrant> EntrantsOf(const std::vector<BenchResult>& results);

// Returns the excess over the best of all for each problem that the entrant
// solved, in ascending order.
std::vector<double> ExcessOf(const Entrant& entrant,
                             const std::vector<BenchResult>& results);

// Returns `time` over `least`, less 1; 0 if `least` is not known.
double ExcessRatio(Duration time, Duration least);

// Returns the best schedule among those that do not search; null if there is
// none.
const BenchRow* BestClassic(const BenchResult& result);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BENCH_ENTRANTS_H_
