// The source of the plan of `emulate`, `run` and `explain`: a file, or a job
// that the command plans.
#ifndef PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_
#define PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/input/planning_flags.h"
#include "emulator/stage/rank_update.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::cli {

struct PlanSource : PlanningFlags {
  std::string plan_file{};  // As --plan FILE; SettlePlanFile() adds PLAN.
  std::string learned{};    // A file of `run --learn`.
  std::vector<std::string> attention_density{};  // For the step of JOB.
};
void AppendPlanSourceFlags(PlanSource* values, std::vector<Flag>* flags);

struct SourcedPlan {
  ExecutionPlan plan{};  // Passes ValidateExecutionPlan.

  // The following are set if a job was planned, not for a plan file.

  // Hits and misses of the cache of stage costs.
  std::optional<emulator::CacheCounters> cache{};
  std::string memory_limit{};  // In words: MemoryLimitText.
  // The plan of every planned replica, the update of each rank, the job's
  // setup, and the number of GPUs of a rank.
  std::vector<ExecutionPlan> replicas{};
  // The least time of the step of replicas that meet within passes; 0: none do
  // (studies/job/planned_step.h).
  Duration together{};
  IdVector<RankId, emulator::RankUpdate> updates{};
  TrainingSetup setup{};
  int32_t gpus_per_rank = 1;
  JitterSpec jitter{};
  // Look-ups that no measurement answers, with the source that does.
  std::vector<std::string> missing_lookups{};
};
// Returns whether an argument is a plan, and not a job to plan: there is no
// --batch. A UsageError: the argument is a job, which needs --batch, or it is
// no file.
absl::StatusOr<bool> IsPlanFile(const std::string& argument,
                                const JobFlags& job);

// Moves the argument PLAN into `source->plan_file`. A UsageError unless exactly
// one of PLAN and JOB --batch FILE is given, or if a plan comes with options
// that are for a JOB. `used`: those that mean something for a plan, too, in
// this command, such as "seed".
absl::Status SettlePlanFile(PlanSource* source, std::vector<std::string>* args,
                            absl::Span<const absl::string_view> used);

// Returns the plan of the file, or the first step of JOB --batch FILE for the
// slowest replica. REQUIRES: SettlePlanFile() was called.
absl::StatusOr<SourcedPlan> GetPlan(const PlanSource& source,
                                    const std::vector<std::string>& args,
                                    const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_
