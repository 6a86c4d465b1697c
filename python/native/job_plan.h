// The steps of a job, planned as `pipeloom plan` plans them.
#ifndef PIPELOOM_PYTHON_NATIVE_JOB_PLAN_H_
#define PIPELOOM_PYTHON_NATIVE_JOB_PLAN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "python/native/step_plan.h"
#include "studies/job/planned_step.h"

namespace pipeloom::python {

// A step with the plans of its replicas; `figures` has no plans of its own.
struct PlannedStep {
  int64_t step = 0;
  int64_t num_samples = 0;
  std::vector<std::shared_ptr<const StepPlan>> replicas{};
  size_t slowest = 0;  // Index into `replicas`.
  Duration step_time{};
  Duration lower_bound{};
  std::string bound_source{};
  double gap_ratio = 0;
  double any_partition_gap = 0;
  double bubble_ratio = 0;
  double epilogue_ratio = 0;
  double mfu = 0;
  std::vector<Bytes> peak_bytes{};
  Duration search_time{};
  int64_t evaluations = 0;
  std::optional<planner::RobustReport> robust{};
};

// A trainer's files (cli/commands/trainer_output.h).
struct TrainerFiles {
  std::string trainer{};
  struct Schedule {
    std::string extension{};  // Empty: there is no file.
    std::string text{};
  };
  std::vector<std::vector<Schedule>>
      schedules{};  // Indexed by step and replica.
  // The launch arguments. Between two parts goes the name of the plans without
  // its extension, from the folder of the arguments: "plan".
  std::vector<std::string> launch_parts{};
  std::string launch_extension{};
};

struct JobPlan {
  std::string job{};
  std::string strategy{};
  Bytes memory_limit{};
  std::vector<PlannedStep> steps{};
  studies::StepMeans means{};
  std::optional<TrainerFiles> trainer{};  // With --for.
};

// Plans with the arguments of `pipeloom plan`, except those that write or print
// (--out, --trace, --report, --format) and --costs-from. Plans and figures are
// those of the command. Errors: UsageError for a wrong argument, otherwise
// those of the job's planner; Cancelled after a stop request.
absl::StatusOr<JobPlan> PlanJob(const std::vector<std::string>& arguments,
                                const cli::Context& context);

}  // namespace pipeloom::python

#endif  // PIPELOOM_PYTHON_NATIVE_JOB_PLAN_H_
