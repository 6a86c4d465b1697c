// Slow ranks and links as options of `plan`, which searches under them.
#ifndef PIPELOOM_CLI_COMMANDS_SLOW_FLAGS_H_
#define PIPELOOM_CLI_COMMANDS_SLOW_FLAGS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/flags.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/job_spec.h"
#include "planner/step/step_types.h"
#include "studies/job/job_input.h"

namespace pipeloom::cli {

// Reads FROM-TO=FACTOR or FROM-TO=+TIME. A UsageError names the text.
absl::StatusOr<SlowRankLink> ParseSlowLink(const std::string& text);

struct SlowFlags {
  std::vector<std::string> ranks{};
  std::vector<std::string> links{};
  bool given() const { return !ranks.empty() || !links.empty(); }
};
void AppendSlowFlags(SlowFlags* values, std::vector<Flag>* flags);

// Makes the ranks and links of all replicas of the job as slow as the flags
// say. A rank whose GPUs the cluster calls slow is as slow as the larger factor
// says. A UsageError names the option, the value and what would be right.
absl::Status ApplySlow(const SlowFlags& flags, JobSpec* job);

// Makes `input` and `prepared` plan steps of `slow_job`, which ApplySlow has
// made of the job. The partition stays, as weights do. `learned`: a file of
// measured times, or empty. Returns the costs of the slow job, which live as
// long as `prepared` is used.
absl::StatusOr<std::unique_ptr<emulator::StageCostModel>> PlanSlowJob(
    JobSpec slow_job, const std::string& learned, studies::JobInput* input,
    planner::PreparedJob* prepared);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_COMMANDS_SLOW_FLAGS_H_
