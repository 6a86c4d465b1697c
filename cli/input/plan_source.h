// Where emulate and run get their plan: a file, or a job planned now.
#ifndef PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_
#define PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/input/job_input.h"
#include "emulator/stage/rank_update.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::cli {

struct PlanSource {
  std::string plan_file{};
  JobFlags job{};
  SearchFlags search{};
  std::optional<std::string> schedule{};
  std::string learned{};                         // A file of `run --learn`.
  std::vector<std::string> attention_density{};  // Of JOB's step.
};
void AppendPlanSourceFlags(PlanSource* values, std::vector<Flag>* flags);

struct SourcedPlan {
  ExecutionPlan plan{};  // Passes ValidateExecutionPlan.
  // How often a stage's cost was known already, when planned now.
  std::optional<emulator::CacheCounters> cache{};
  // Of a job planned now, else empty.
  std::string memory_limit{};  // In words: MemoryLimitText.
  // Of a job planned now, else empty: the plan of every replica planned, what
  // follows a rank's last backward, GPUs of a rank, and a GPU's link to its
  // host.
  std::vector<ExecutionPlan> replicas{};
  IdVector<RankId, emulator::RankUpdate> updates{};
  int32_t gpus_per_rank = 1;
  Bandwidth host_bandwidth{};
  // Of the job's cluster: how links and cards are shared, what varies.
  emulator::EmulateOptions network{};
  JitterSpec jitter{};
  // Look-ups that nothing measured answers, with what does.
  std::vector<std::string> missing_lookups{};
};
// --plan FILE, or JOB --batch FILE: the first step, of the slowest replica. A
// UsageError unless it is exactly one of the two.
absl::StatusOr<SourcedPlan> GetPlan(const PlanSource& source,
                                    const std::vector<std::string>& args,
                                    const Context& context);

// Of a GPU of JOB's cluster to its host; 0 for a plan file, which does not say.
absl::StatusOr<Bandwidth> HostBandwidthOf(const PlanSource& source,
                                          const std::vector<std::string>& args);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_
