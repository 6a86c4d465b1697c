// Backtests of several tables of measured runs, with progress and stop
// requests.
#ifndef PIPELOOM_STUDIES_BACKTEST_TABLE_SET_H_
#define PIPELOOM_STUDIES_BACKTEST_TABLE_SET_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/device_profiles.h"
#include "formats/profile/measured_runs.h"
#include "ir/job/cluster_spec.h"
#include "studies/backtest/emulate_against.h"
#include "studies/job/study_context.h"

namespace pipeloom::studies {

// A table of measured runs with its models and clusters.
struct MeasuredTable {
  std::string file{};
  // The file's name without folder and extension; the whole path if another
  // table of the set has the same name.
  std::string name{};
  std::vector<formats::MeasuredRun> runs{};
  std::vector<ClusterSpec> clusters{};  // One for each run.
  // Whether the times are another program's predictions: the file begins with
  // "# Predicted". They say nothing on errors.
  bool predicted = false;
};

// Reads tables; clusters may be named relative to their folders. Errors name
// the table: it cannot be read, has a wrong value, names a model or a cluster
// that is not there, or is in `files` twice.
absl::StatusOr<std::vector<MeasuredTable>> LoadTables(
    const std::vector<std::string>& files, const std::string& data_dir,
    const formats::FileReader& read);

struct BacktestOptions {
  bool fit = false;
  // Those that price devices; a device without any is priced by its rates.
  formats::DeviceProfiles profiles{};
};

struct TableComparison {
  std::string name{};
  Comparison comparison{};
  std::vector<std::string> devices{};  // The GPU of each run: "H100".
  bool predicted = false;
};

// Compares all runs of all tables. Errors name table and run. Cancelled: a stop
// was requested, which is looked at before each emulation.
absl::StatusOr<std::vector<TableComparison>> CompareTables(
    const std::vector<MeasuredTable>& tables, const BacktestOptions& options,
    const StudyContext& context);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BACKTEST_TABLE_SET_H_
