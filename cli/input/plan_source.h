// The source of the plan of `emulate` and `run`: a file, or a job that the
// command plans.
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
  studies::SearchOptions search{};
  std::optional<std::string> schedule{};
  std::string learned{};                         // A file of `run --learn`.
  std::vector<std::string> attention_density{};  // For the step of JOB.
};
void AppendPlanSourceFlags(PlanSource* values, std::vector<Flag>* flags);

struct SourcedPlan {
  ExecutionPlan plan{};  // Passes ValidateExecutionPlan.

  // The following are set if a job was planned, not for a plan file.

  // Hits and misses of the cache of stage costs.
  std::optional<emulator::CacheCounters> cache{};
  std::string memory_limit{};  // In words: MemoryLimitText.
  // The plan of every planned replica, the work of each rank after its last
  // backward, the number of GPUs of a rank, and a GPU's link to its host.
  std::vector<ExecutionPlan> replicas{};
  IdVector<RankId, emulator::RankUpdate> updates{};
  int32_t gpus_per_rank = 1;
  Bandwidth host_bandwidth{};
  // How links and network cards of the job's cluster are shared, and its
  // jitter.
  emulator::EmulateOptions network{};
  JitterSpec jitter{};
  // Look-ups that no measurement answers, with the source that does.
  std::vector<std::string> missing_lookups{};
};
// Returns the plan of --plan FILE, or the first step of JOB --batch FILE for
// the slowest replica. A UsageError unless exactly one of the two is given.
absl::StatusOr<SourcedPlan> GetPlan(const PlanSource& source,
                                    const std::vector<std::string>& args,
                                    const Context& context);

// Returns the bandwidth of a GPU of JOB's cluster to its host; 0 for a plan
// file, which does not say it.
absl::StatusOr<Bandwidth> HostBandwidthOf(const PlanSource& source,
                                          const std::vector<std::string>& args);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLAN_SOURCE_H_
