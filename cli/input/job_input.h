// The options of all commands that read a job: of the job, its batch and the
// search. cli/input/planning_flags.h has the whole group.
#ifndef PIPELOOM_CLI_INPUT_JOB_INPUT_H_
#define PIPELOOM_CLI_INPUT_JOB_INPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/console/command.h"
#include "formats/job/job_overrides.h"
#include "ir/job/job_spec.h"
#include "studies/job/job_input.h"

namespace pipeloom::cli {

struct JobFlags : studies::JobOptions {
  std::string batch{};
  int64_t steps = 1;
  int64_t replicas = 0;                  // 0: all replicas of the job.
  std::optional<Share> reserve_share{};  // `reserve` as it is typed.
  Repeated sets{};                       // Changes of the job, PATH=VALUE.
  Repeated profile_files{};              // `profiles` as they are typed.
  // Whether a profile may be of a device that the job does not have.
  bool may_leave_profiles = false;
};
void AppendJobFlags(JobFlags* values, bool with_steps,
                    std::vector<Flag>* flags);
Flag DataDirFlag(std::string* value);
Flag ProfileFlag(Repeated* values);
// `deadline_default`: in words, for commands without a job; empty: the job's.
void AppendSearchFlags(studies::SearchOptions* values, std::vector<Flag>* flags,
                       absl::string_view deadline_default = "");

// Returns the options that are changes of the job file's fields, in the order
// in which they apply: --set, then --microbatches, --memory-limit and
// --reserve, which take precedence. A UsageError names a --set that is no
// PATH=VALUE.
absl::StatusOr<std::vector<formats::JobOverride>> ChangesOf(
    const JobFlags& flags);

// Reads the job with the changes of --set. A UsageError: the job cannot have
// these changes.
absl::StatusOr<JobSpec> ReadJob(const std::string& job, const JobFlags& flags);

// Reads the job and its batch and applies the options. `batch` is a path or
// the name of a shipped batch. InvalidArgument: the batch is empty or has no
// work for the job. A UsageError: a profile is of no device of the job. Prints
// notes on what it did not understand to stderr.
absl::StatusOr<studies::JobInput> ReadJobInput(const std::string& job,
                                               const JobFlags& flags,
                                               const Context& context);

// Prints a note for each change of a device's efficiency if a profile prices
// the job's operators: measured ones do not depend on it.
void NoteMeasured(absl::Span<const formats::JobOverride> changes,
                  const studies::JobInput& input, const Context& context);

// Returns for example "memory limit 77.60 GiB a GPU, reserve 2.40 GiB (3 %)",
// without a reserve if the limit is given by the job. With several devices, the
// limit is that of the job's device.
std::string MemoryLimitText(const JobSpec& job);

// Returns the only positional argument, else a UsageError that asks for `what`.
absl::StatusOr<std::string> OneArgument(const std::vector<std::string>& args,
                                        absl::string_view what);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_JOB_INPUT_H_
