// The files that a trainer needs to execute plans made within its limits: a
// schedule for each plan, and how it is launched.
#ifndef PIPELOOM_ADAPTERS_TRAINER_FILES_H_
#define PIPELOOM_ADAPTERS_TRAINER_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "adapters/launch_parts.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"

namespace pipeloom::adapters {

// Returns the schedule file of a plan. Errors of ActionsOf and of the trainer's
// format; FailedPrecondition also if a stock schedule is no such.
absl::StatusOr<TrainerFile> ScheduleFileOf(const TrainerLimits& trainer,
                                           const ExecutionPlan& plan);

// Returns the launch arguments, in the trainer's own form: command-line
// arguments or lines of Python. What they cannot say is a
// comment that begins with #. `file`: the first plan's schedule file, made from
// `schedule`, from the folder of the arguments; empty if it was not written.
absl::StatusOr<std::string> LaunchArguments(const TrainerLimits& trainer,
                                            const JobSpec& job,
                                            const Partition& partition,
                                            const RecomputeSetting& recompute,
                                            const TrainerFile& schedule,
                                            absl::string_view file);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_TRAINER_FILES_H_
