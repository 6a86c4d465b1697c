// The output of `pipeloom bench`: tables for people, JSON for programs, and a
// page with plots.
#ifndef PIPELOOM_CLI_REPORT_BENCH_TABLES_H_
#define PIPELOOM_CLI_REPORT_BENCH_TABLES_H_

#include <string>
#include <vector>

#include "cli/console/table.h"
#include "studies/bench/bench_runs.h"

namespace pipeloom::cli {

// Returns a table with one row per entrant: problems solved, excess over the
// best of all and over the bound (means over the problems that it solved).
Table SummaryTable(const std::vector<studies::BenchResult>& results);
// Returns a table with one row per problem: bound, best known, best classic
// schedule, then the searches for each budget.
Table ProblemTable(const std::vector<studies::BenchResult>& results);

// Returns the reasons, a line each, for which no schedule solved a problem or
// another program's answer to it was refused.
std::vector<std::string> BenchNotes(
    const std::vector<studies::BenchResult>& results);

std::string BenchJson(const std::vector<studies::BenchResult>& results,
                      const std::string& source);
// Returns the HTML page; `command` is shown on it, so that the page can be made
// again.
std::string BenchPage(const std::vector<studies::BenchResult>& results,
                      const std::string& command);
std::string BenchMarkdown(const std::vector<studies::BenchResult>& results,
                          const std::string& command);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_BENCH_TABLES_H_
