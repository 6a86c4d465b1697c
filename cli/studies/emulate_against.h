// `pipeloom emulate --against FILE`: every measured run of a table emulated
// and compared with its measurement. Equations, columns, bars and results:
// docs/validation.md.
//
// A framework may have one scalar (formats::FittedScalar), fitted on the
// configurations whose hashes are smallest, at most a fifth of them and none
// if there are fewer than five, or on the rows that the table marks `fit`.
// Fitted rows are told apart in every output and count in no error.
#ifndef PIPELOOM_CLI_STUDIES_EMULATE_AGAINST_H_
#define PIPELOOM_CLI_STUDIES_EMULATE_AGAINST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "cli/console/command.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/stage_cost.h"
#include "formats/profile/measured_runs.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/partition.h"

namespace pipeloom::cli {

struct EmulatedRun {
  Duration step_time{};
  Bytes peak_allocated{};  // Of the fullest rank, without context.
};

// A run as the planner sees it, and the plan of one replica's step: balanced
// layers, 1F1B (interleaved with chunks). What `plan` does with the job, but
// for the choice of partition and memory, which are the run's.
struct PlannedRun {
  JobSpec job{};
  BatchMetadata batch{};
  std::unique_ptr<const emulator::StageCostModel> costs{};
  Partition partition{};
  std::string schedule{};
  ExecutionPlan plan{};
};
// `measured`: prices of operators for a layout of the cluster; null: by peak
// rates.
absl::StatusOr<PlannedRun> PlanMeasuredRun(
    const formats::MeasuredRun& run, const ClusterSpec& cluster,
    const emulator::OpCostModel* measured = nullptr);

// The same emulated. Errors name the run.
absl::StatusOr<EmulatedRun> EmulateMeasuredRun(
    const formats::MeasuredRun& run, const ClusterSpec& cluster,
    const emulator::OpCostModel* measured = nullptr);

struct ComparedRun {
  formats::MeasuredRun run{};
  bool fitted = false;  // Used to fit its framework's scalar.
  EmulatedRun emulated{};
  double step_error() const;  // Emulated over measured, less 1.
  double peak_error() const;  // 0 if not measured.
};

struct FrameworkScalar {
  std::string framework{};
  formats::FittedScalar kind = formats::FittedScalar::kStretch;
  double value = 1;  // Stretch, or microseconds a kernel.
  int32_t fitted_rows = 0;
  int32_t fitted_configurations = 0;
  int32_t configurations = 0;
};

struct Comparison {
  std::vector<ComparedRun> runs{};         // In file order.
  std::vector<FrameworkScalar> scalars{};  // By framework's name.
};

// `clusters`: one for each run; `measured`: of each run, or empty. With `fit`
// off every scalar is 1 (stretch) or what the rows say (host).
absl::StatusOr<Comparison> CompareRuns(
    std::vector<formats::MeasuredRun> runs,
    const std::vector<ClusterSpec>& clusters, bool fit,
    const std::vector<const emulator::OpCostModel*>& measured = {});

// Of absolute errors.
struct ErrorSummary {
  int32_t count = 0;
  double mean = 0;
  double median = 0;
  double worst = 0;
  double bias = 0;  // Mean of signed errors.
};
ErrorSummary SummarizeErrors(std::vector<double> errors);

struct AgainstOptions {
  std::string file{};
  std::string data_dir{};
  std::string csv_out{};  // Empty: none.
  bool fit = false;
  bool json = false;
  // Operators by the measured profile of the device, or else of its model
  // ("a100-vtrain": a100-sxm), where one ships.
  bool measured = true;
};
absl::Status EmulateAgainst(const AgainstOptions& options,
                            const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_EMULATE_AGAINST_H_
