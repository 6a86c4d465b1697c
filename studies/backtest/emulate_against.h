// A backtest, which emulates every measured run of a table and compares it with
// its measurement. docs/validation.md has equations,
// columns, error bounds and results.
//
// A framework may have one scalar (formats::FittedScalar), fitted on the
// configurations with the smallest hashes, at most a fifth of all and none if
// there are fewer than five, or on the rows that the table marks `fit`. Fitted
// rows are marked in every output and count in no error.
#ifndef PIPELOOM_STUDIES_BACKTEST_EMULATE_AGAINST_H_
#define PIPELOOM_STUDIES_BACKTEST_EMULATE_AGAINST_H_

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/stage_cost.h"
#include "formats/profile/measured_runs.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/partition.h"

namespace pipeloom::studies {

struct EmulatedRun {
  Duration step_time{};
  // Peak of the kind that was measured (formats::PeakKind), without CUDA
  // context except for kUsed.
  Bytes peak_allocated{};
};

// A measured run as the planner sees it, with the plan of one replica's step:
// balanced layers and 1F1B (interleaved if there are chunks). It is made as
// `plan` plans a job, except that partition and memory choices are the run's.
struct PlannedRun {
  JobSpec job{};
  BatchMetadata batch{};
  std::unique_ptr<const emulator::StageCostModel> costs{};
  Partition partition{};
  std::string schedule{};
  ExecutionPlan plan{};
  std::shared_ptr<const emulator::StepUpdate> update{};
};
// Plans a measured run. `measured` are prices of operators for the run's layout
// of the cluster; null: price by peak rates.
absl::StatusOr<PlannedRun> PlanMeasuredRun(
    const formats::MeasuredRun& run, const ClusterSpec& cluster,
    const emulator::OpCostModel* measured = nullptr);

// Plans and emulates a measured run. Errors name the run.
absl::StatusOr<EmulatedRun> EmulateMeasuredRun(
    const formats::MeasuredRun& run, const ClusterSpec& cluster,
    const emulator::OpCostModel* measured = nullptr);

struct ComparedRun {
  formats::MeasuredRun run{};
  bool fitted = false;   // Whether it was used to fit its framework's scalar.
  std::string prices{};  // The device of the profile, or "roofline".
  EmulatedRun emulated{};
  // Return emulated over measured, less 1; peak_error is 0 if the peak was not
  // measured.
  double step_error() const;
  double peak_error() const;
};

// The fewest configurations of which a fifth is fitted, unless rows are marked.
inline constexpr int32_t kFewestConfigurations = 5;
inline constexpr int32_t kMostHostUs = 63;  // The longest that is tried.

struct FrameworkScalar {
  std::string framework{};
  formats::FittedScalar kind = formats::FittedScalar::kStretch;
  double value = 1;  // Stretch, or microseconds per kernel.
  // Whether the value is at an end of what was tried, 0 to kMostHostUs.
  bool at_end = false;
  int32_t fitted_rows = 0;
  int32_t fitted_configurations = 0;
  int32_t configurations = 0;  // 0: no fit was asked for.
};

struct Comparison {
  std::vector<ComparedRun> runs{};         // In file order.
  std::vector<FrameworkScalar> scalars{};  // Ordered by framework's name.
};

// Emulates all runs and compares them with their measurements. `clusters` has
// one entry for each run; so has `measured`, unless it is empty. Without `fit`,
// every scalar is 1 (stretch) or the value in the rows (host). Cancelled: a
// stop was requested, which is looked at before each emulation.
absl::StatusOr<Comparison> CompareRuns(
    std::vector<formats::MeasuredRun> runs,
    const std::vector<ClusterSpec>& clusters, bool fit,
    const std::vector<const emulator::OpCostModel*>& measured = {},
    const std::stop_token& stop = {});

// Figures of absolute errors.
struct ErrorSummary {
  int32_t count = 0;
  double mean = 0;
  double median = 0;
  double worst = 0;
  double bias = 0;  // Mean of signed errors.
};
ErrorSummary SummarizeErrors(std::vector<double> errors);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BACKTEST_EMULATE_AGAINST_H_
