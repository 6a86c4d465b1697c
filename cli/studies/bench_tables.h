// The output of `pipeloom bench`: tables for people, JSON for programs, and a
// page with plots.
#ifndef PIPELOOM_CLI_STUDIES_BENCH_TABLES_H_
#define PIPELOOM_CLI_STUDIES_BENCH_TABLES_H_

#include <string>
#include <vector>

#include "cli/console/table.h"
#include "cli/studies/bench_runs.h"

namespace pipeloom::cli {

// Returns for example "10 ms" or "1 s".
std::string BudgetLabel(Duration budget);

// A schedule with the time budget that it was given.
struct Entrant {
  std::string schedule{};
  Duration budget{};
  // Returns for example "pipeloom 100 ms" or "1f1b".
  std::string label() const;
};
// Returns all entrants that have a row, in order of appearance.
std::vector<Entrant> EntrantsOf(const std::vector<BenchResult>& results);

// Returns the excess over the best of all for each problem that the entrant
// solved, in ascending order.
std::vector<double> ExcessOf(const Entrant& entrant,
                             const std::vector<BenchResult>& results);

// Returns a table with one row per entrant: problems solved, excess over the
// best of all and over the bound (means over the problems that it solved).
Table SummaryTable(const std::vector<BenchResult>& results);
// Returns a table with one row per problem: bound, best known, best classic
// schedule, then the searches for each budget.
Table ProblemTable(const std::vector<BenchResult>& results);

std::string BenchJson(const std::vector<BenchResult>& results,
                      const std::string& source);
// Returns the HTML page; `command` is shown on it, so that the page can be made
// again.
std::string BenchPage(const std::vector<BenchResult>& results,
                      const std::string& command);
std::string BenchMarkdown(const std::vector<BenchResult>& results,
                          const std::string& command);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_BENCH_TABLES_H_
