// Input of all commands that plan: the options of the job, its batch and the
// search, and functions that read them.
#ifndef PIPELOOM_CLI_INPUT_JOB_INPUT_H_
#define PIPELOOM_CLI_INPUT_JOB_INPUT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/profile/device_profile.h"
#include "partition/batching/batch_split.h"
#include "planner/core/search_budget.h"
#include "planner/search/robust_search.h"

namespace pipeloom::cli {

struct JobFlags {
  std::string batch{};
  int64_t steps = 1;
  int64_t replicas = 0;  // 0: all replicas of the job.
  std::optional<int64_t> microbatches{};
  std::optional<Bytes> memory_limit{};
  std::optional<Share> reserve{};
  std::string data_dir{};
  std::string costs = "profile";  // "profile" or "roofline".
  // "in-order", "balanced" or "deferred".
  std::optional<std::string> assignment{};
  std::optional<int64_t> shuffle{};  // Seed of the shuffle.
};
void AppendJobFlags(JobFlags* values, bool with_steps,
                    std::vector<Flag>* flags);
Flag DataDirFlag(std::string* value);

struct SearchFlags {
  std::optional<Duration> deadline{};
  std::optional<int64_t> evaluations{};
  std::optional<int64_t> seed{};
  int64_t threads = 0;  // 0: one for each core.
};
void AppendSearchFlags(SearchFlags* values, std::vector<Flag>* flags);

// The effective settings of a search: the options, else the job's defaults. If
// evaluations are set (by an option or the job), there is a deadline only if an
// option asks for it, so that results do not depend on the machine.
struct SearchSettings {
  std::optional<Duration> deadline{};  // Wall time of each search.
  std::optional<int64_t> evaluations{};
  uint64_t seed = 1;
  int32_t threads = 1;
  std::optional<planner::Disturbances> robust{};  // See PlanInput.
  bool defer = false;  // See planner/step/plan_deferred.h.
};
SearchSettings Settle(const SearchFlags& flags, const SearchSpec& defaults);

// Returns a budget whose deadline counts from this call.
planner::SearchBudget StartBudget(const SearchSettings& settings,
                                  const Context& context);

struct JobInput {
  JobSpec job{};
  std::string batch_name{};
  BatchMetadata batch{};
  int32_t replicas = 1;  // Number of the job's replicas that are planned.
  bool defer = false;    // Whether --assignment is "deferred".
  // If set, steps take shuffled epochs of the batch, else its samples in order
  // and once.
  std::optional<uint64_t> shuffle{};
  // The profile of the job's device, if one ships and is asked for; else null.
  std::shared_ptr<const DeviceProfile> profile{};
  // The profiles of the devices of the cluster's node groups, indexed by device
  // name, as far as they ship.
  std::map<std::string, std::shared_ptr<const DeviceProfile>> more_profiles{};
};
// Reads the job and its batch and applies the options. `batch` is a path or
// the name of a shipped batch. InvalidArgument: the batch is empty or has no
// work for the job. Prints notes on what it did not understand to stderr.
absl::StatusOr<JobInput> ReadJobInput(const std::string& job,
                                      const JobFlags& flags,
                                      const Context& context);

// Returns for example "memory limit 77.60 GiB a GPU, reserve 2.40 GiB (3 %)",
// without a reserve if the limit is given by the job. With several devices, the
// limit is that of the job's device.
std::string MemoryLimitText(const JobSpec& job);

// Returns the costs of the job's operators, from the profile if there is one,
// else from the roofline.
std::unique_ptr<const emulator::OpCostModel> CostsOf(const JobInput& input);

// Packs the samples of all steps, in order or shuffled. InvalidArgument says
// for how many steps the batch suffices. Prints a note for a step that is short
// of samples.
absl::StatusOr<std::vector<partition::PackedStep>> PackSteps(
    const JobInput& input, int64_t num_steps, const Context& context);

// Returns the first samples of the batch, from which a partition is made.
BatchMetadata SampleOf(const BatchMetadata& batch);

// Returns the only positional argument, else a UsageError that asks for `what`.
absl::StatusOr<std::string> OneArgument(const std::vector<std::string>& args,
                                        absl::string_view what);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_JOB_INPUT_H_
