// What `pipeloom bench` prints and writes: tables for people, JSON for
// programs, and a page with plots.
#ifndef PIPELOOM_CLI_STUDIES_BENCH_TABLES_H_
#define PIPELOOM_CLI_STUDIES_BENCH_TABLES_H_

#include <string>
#include <vector>

#include "cli/console/table.h"
#include "cli/studies/bench_runs.h"

namespace pipeloom::cli {

std::string BudgetLabel(Duration budget);  // "10 ms", "1 s".

// A schedule with the time it was given.
struct Entrant {
  std::string schedule{};
  Duration budget{};
  std::string label() const;  // "pipeloom 100 ms", "1f1b".
};
// All that have a row, in order of appearance.
std::vector<Entrant> EntrantsOf(const std::vector<BenchResult>& results);

// How far above the best of all, by problem that it solved; ascending.
std::vector<double> ExcessOf(const Entrant& entrant,
                             const std::vector<BenchResult>& results);

// One row an entrant: problems solved, excess over the best of all and over
// the bound (means over the problems it solved).
Table SummaryTable(const std::vector<BenchResult>& results);
// One row a problem: bound, best known, best classic schedule, then the
// searches by budget.
Table ProblemTable(const std::vector<BenchResult>& results);

std::string BenchJson(const std::vector<BenchResult>& results,
                      const std::string& source);
// `command` is printed so that the page can be made again.
std::string BenchPage(const std::vector<BenchResult>& results,
                      const std::string& command);
std::string BenchMarkdown(const std::vector<BenchResult>& results,
                          const std::string& command);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_BENCH_TABLES_H_
