// A step planned for all its replicas, and its figures as a whole: the step is
// over when the slowest replica is.
#ifndef PIPELOOM_CLI_INPUT_PLANNED_STEP_H_
#define PIPELOOM_CLI_INPUT_PLANNED_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/progress.h"
#include "cli/input/job_input.h"
#include "planner/step/plan_step.h"

namespace pipeloom::cli {

// The strategies that are compared unless others are named: all but the rungs
// of dip's ladder, which only its ablation is made of.
std::vector<std::string> UsualSchedules();

struct PlannedStep {
  int64_t step = 0;
  std::vector<planner::PlanResult> replicas{};
  Duration search_time{};  // Wall time, all replicas.
  int64_t num_samples = 0;

  Duration step_time() const;        // Of the slowest replica.
  Duration lower_bound() const;      // The largest of the replicas' ...
  const char* bound_source() const;  // ... and where that is from.
  double gap_ratio() const;
  // Over all ranks of all replicas: idle, and in their epilogues.
  double bubble_ratio() const;
  double epilogue_ratio() const;
  double mfu() const;
  std::vector<Bytes> peak_bytes() const;  // By rank, the most of any replica.
  Bytes peak() const;
  int64_t evaluations() const;
  const planner::PlanResult& slowest() const;
};

// The means of several steps: ratios are weighted by step time.
struct StepMeans {
  Duration step_time{};
  Duration search_time{};
  double gap_ratio = 0;
  double bubble_ratio = 0;
  double epilogue_ratio = 0;
  double mfu = 0;
  Bytes peak{};  // The most of any step.
};
StepMeans MeansOf(const std::vector<PlannedStep>& steps);

// Tells `progress` how many replicas of all steps are planned.
absl::StatusOr<PlannedStep> PlanReplicas(
    const planner::PreparedJob& prepared, const partition::PackedStep& packed,
    int64_t step, int32_t replicas, const SearchSettings& settings,
    const Context& context, Progress& progress, absl::string_view detail = "");

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLANNED_STEP_H_
