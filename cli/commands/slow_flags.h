// Slow ranks and links as options of `plan` and `compare`, which search under
// them.
#ifndef PIPELOOM_CLI_COMMANDS_SLOW_FLAGS_H_
#define PIPELOOM_CLI_COMMANDS_SLOW_FLAGS_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/console/flags.h"
#include "cli/input/measured_flags.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/job_spec.h"
#include "studies/job/job_input.h"

namespace pipeloom::cli {

// Reads FROM-TO=FACTOR or FROM-TO=+TIME. A UsageError names the text.
absl::StatusOr<SlowRankLink> ParseSlowLink(const std::string& text);

// Adds `name` ("rank 3", "link 0-1") to the ones that `option` has named so
// far. A UsageError if it is among them: which value counts would be unclear.
absl::Status NameOnce(absl::string_view option, absl::string_view text,
                      const std::string& name, std::set<std::string>* named);

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

// Returns a UsageError if costs come from traces too: their times already
// include the slow ranks and links.
absl::Status CheckSlow(const SlowFlags& flags, const MeasuredFlags& measured);

// Puts `slow_job`, which ApplySlow has made of the job, in its place and
// returns its costs. `learned`: a file of measured times, or empty. Steps
// planned with these costs keep the partition of the healthy job, as moving
// weights takes long.
absl::StatusOr<std::unique_ptr<emulator::StageCostModel>> SlowCosts(
    JobSpec slow_job, const std::string& learned, studies::JobInput* input);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_COMMANDS_SLOW_FLAGS_H_
