// Where emulate and run get their plan: a file, or a job planned now.
#ifndef PIPELOOM_CLI_PLAN_SOURCE_H_
#define PIPELOOM_CLI_PLAN_SOURCE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/job_input.h"
#include "emulator/stage_cost.h"
#include "ir/execution_plan.h"

namespace pipeloom::cli {

struct PlanSource {
  std::string plan_file{};
  JobFlags job{};
  SearchFlags search{};
  std::optional<std::string> schedule{};
};
void AppendPlanSourceFlags(PlanSource* values, std::vector<Flag>* flags);

struct SourcedPlan {
  ExecutionPlan plan{};  // Passes ValidateExecutionPlan.
  // How often a stage's cost was known already, when planned now.
  std::optional<emulator::CacheCounters> cache{};
};
// --plan FILE, or JOB --batch FILE: the first step, of the slowest replica. A
// UsageError unless it is exactly one of the two.
absl::StatusOr<SourcedPlan> GetPlan(const PlanSource& source,
                                    const std::vector<std::string>& args,
                                    const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_PLAN_SOURCE_H_
