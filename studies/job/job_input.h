// Input of all studies that plan: a job with its batch, the settings of a
// search, and the options that they are made from.
#ifndef PIPELOOM_STUDIES_JOB_JOB_INPUT_H_
#define PIPELOOM_STUDIES_JOB_JOB_INPUT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "formats/profile/device_profiles.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/carried_step.h"
#include "ir/profile/device_profile.h"
#include "partition/batching/batch_split.h"
#include "planner/core/search_budget.h"
#include "planner/search/robust_search.h"
#include "studies/job/study_context.h"

namespace pipeloom::studies {

// Changes of a job.
struct JobOptions {
  std::optional<int64_t> microbatches{};
  std::optional<Bytes> memory_limit{};
  std::optional<double> reserve{};  // Share of the device's memory.
  std::string data_dir{};           // Folder of the shipped data.
  std::string costs = "profile";    // "profile" or "roofline".
  // Files of profiles of devices, which precede those of the data folder.
  std::vector<std::string> profiles{};
  // "in-order", "balanced" or "deferred".
  std::optional<std::string> assignment{};
  std::optional<int64_t> shuffle{};  // Seed of the shuffle.
};
struct SearchOptions {
  std::optional<Duration> deadline{};
  std::optional<int64_t> evaluations{};
  std::optional<int64_t> seed{};
  int64_t threads = 0;  // 0: one for each core.
  std::optional<int64_t> workers{};
};

// The effective settings of a search: the options, else the job's defaults. If
// evaluations are set (by an option or the job), there is a deadline only if an
// option asks for it, so that results do not depend on the machine.
struct SearchSettings {
  std::optional<Duration> deadline{};  // Wall time of each search.
  std::optional<int64_t> evaluations{};
  uint64_t seed = 1;
  int32_t threads = 1;
  int32_t workers = planner::kUsualWorkers;
  std::optional<planner::Disturbances> robust{};  // See PlanInput.
  bool defer = false;  // See planner/job/plan_deferred.h.
  // Searches go on from these, and under a deadline from the latest steps, too.
  std::vector<std::shared_ptr<const CarriedStep>> warm_up{};
};
SearchSettings Settle(const SearchOptions& options, const SearchSpec& defaults);

// Returns a budget whose deadline counts from this call.
planner::SearchBudget StartBudget(const SearchSettings& settings,
                                  const std::stop_token& stop);

struct JobInput {
  JobSpec job{};
  // The job, its batch and its changes as arguments of a command; empty if it
  // is not of a command line.
  std::string arguments{};
  std::string batch_name{};
  BatchMetadata batch{};
  int32_t replicas = 1;  // Number of the job's replicas that are planned.
  bool defer = false;    // Whether --assignment is "deferred".
  // If set, steps take shuffled epochs of the batch, else its samples in order
  // and once.
  std::optional<uint64_t> shuffle{};
  // Those that may price devices; none if peak rates are asked for.
  formats::DeviceProfiles profiles{};
  // The profile of the job's device; null if `profiles` has none.
  std::shared_ptr<const DeviceProfile> profile{};
  // The profiles of the devices of the cluster's node groups, indexed by device
  // name, as far as there are any.
  std::map<std::string, std::shared_ptr<const DeviceProfile>> more_profiles{};
};
// Sets the profiles of the devices of the job's cluster from `profiles`.
// Errors are those of formats::DeviceProfiles.
absl::Status FindProfiles(JobInput* input);
// Returns a note (studies::PriceNote) for each device of the job that its own
// profile does not price as it was measured.
std::vector<std::string> PriceNotes(const JobInput& input);
// Applies the options to the job and finds the profiles of its devices. The
// result has no batch yet, and all replicas of the job. Warns of options that
// change nothing, and of how devices without measurements are priced.
absl::StatusOr<JobInput> MakeJobInput(JobSpec job, const JobOptions& options,
                                      const StudyContext& context);
// Reads the job and does the same.
absl::StatusOr<JobInput> LoadJobInput(const std::string& job,
                                      const JobOptions& options,
                                      const StudyContext& context);
// Reads the batch `name`, a path or the name of a shipped batch.
// InvalidArgument: the batch is empty or has no work for the job. Warns of
// parts that it did not understand and of modules without work.
absl::Status LoadBatch(const std::string& name, const std::string& data_dir,
                       const StudyContext& context, JobInput* input);

// Returns the costs of the job's operators, from the profile if there is one,
// else from the roofline.
std::unique_ptr<const emulator::OpCostModel> CostsOf(const JobInput& input);

// Packs the samples of all steps, in order or shuffled. InvalidArgument says
// for how many steps the batch suffices. Warns of a step that is short of
// samples. Cancelled after a stop request.
absl::StatusOr<std::vector<partition::PackedStep>> PackSteps(
    const JobInput& input, int64_t num_steps, const StudyContext& context);

// Returns the first samples of the batch, from which a partition is made.
BatchMetadata SampleOf(const BatchMetadata& batch);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_JOB_JOB_INPUT_H_
