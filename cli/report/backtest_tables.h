// The output of `pipeloom backtest`: tables for people, JSON and CSV for
// programs. docs/validation.md has the columns of a table of runs.
#ifndef PIPELOOM_CLI_REPORT_BACKTEST_TABLES_H_
#define PIPELOOM_CLI_REPORT_BACKTEST_TABLES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "studies/backtest/emulate_against.h"
#include "studies/backtest/table_set.h"

namespace pipeloom::cli {

std::string BacktestTable(const studies::Comparison& comparison);
std::string BacktestJson(const studies::Comparison& comparison);
std::string BacktestCsv(const studies::Comparison& comparison);

// Return the results of several tables: errors by table and of all, for
// programs also every run.
std::string BacktestSetTable(
    const std::vector<studies::TableComparison>& tables);
std::string BacktestSetJson(
    const std::vector<studies::TableComparison>& tables);
std::string BacktestSetCsv(const std::vector<studies::TableComparison>& tables);

// Returns a page with plots (cli/report/backtest_page.cc). `command` made it.
std::string BacktestPage(const std::vector<studies::TableComparison>& tables,
                         const std::string& command);

// Returns a sentence that names the tables whose rows leave the host's time to
// launch a kernel to a fit that was not made; "" if there are none.
std::string TextWithoutHost(
    const std::vector<studies::TableComparison>& tables);

// The errors of one quantity: of step times, of runs that fitted no scalar; or
// of peak memory over the runs that measured it.
class BacktestErrors {
 public:
  void Add(const studies::ComparedRun& run);
  // Adds those of a framework; "": of all.
  void Add(const studies::Comparison& comparison,
           const std::string& framework = "");
  studies::ErrorSummary step() const { return studies::SummarizeErrors(step_); }
  studies::ErrorSummary peak() const { return studies::SummarizeErrors(peak_); }

 private:
  std::vector<double> step_{};
  std::vector<double> peak_{};
};

struct BacktestFlags {
  std::string data_dir{};  // As it is typed.
  bool fit = false;
  std::string costs = "profile";     // "profile" or "roofline".
  Repeated profile_files{};          // Profiles that precede those that ship.
  std::vector<std::string> files{};  // At least one.
  bool set = false;       // Whether to print the result of a set of tables.
  std::string csv_out{};  // File to write; empty: none.
  std::string report{};   // The same, of the page.
  bool json = false;
};
// Runs the backtest and prints its result. A UsageError names the table that
// cannot be read or is wrong.
absl::Status PrintBacktest(const BacktestFlags& flags, const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_BACKTEST_TABLES_H_
