// The output of `pipeloom backtest`: tables for people, JSON and CSV for
// programs. docs/validation.md has the columns.
#ifndef PIPELOOM_CLI_REPORT_BACKTEST_TABLES_H_
#define PIPELOOM_CLI_REPORT_BACKTEST_TABLES_H_

#include <string>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "studies/backtest/emulate_against.h"

namespace pipeloom::cli {

std::string BacktestTable(const studies::Comparison& comparison);
std::string BacktestJson(const studies::Comparison& comparison);
std::string BacktestCsv(const studies::Comparison& comparison);

struct BacktestFlags {
  studies::BacktestOptions options{};  // `data_dir` as it is typed.
  std::string csv_out{};               // File to write; empty: none.
  bool json = false;
};
// Runs the backtest and prints its result.
absl::Status PrintBacktest(const BacktestFlags& flags, const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_BACKTEST_TABLES_H_
