#include "cli/input/job_input.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/input/operator_prices.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/stage/stage_cost.h"
#include "formats/job/spec_loader.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/epochs.h"
#include "partition/batching/token_count.h"

namespace pipeloom::cli {
namespace {

constexpr int32_t kMaxSampled = 2048;

// Returns the path of a batch; shipped batches are data_dir/batches/NAME.jsonl.
absl::StatusOr<std::string> BatchPath(const std::string& name_or_path,
                                      const std::string& data_dir) {
  if (absl::StrContains(name_or_path, "/") ||
      absl::EndsWith(name_or_path, ".jsonl") || FileExists(name_or_path)) {
    return name_or_path;
  }
  const std::string path =
      absl::StrCat(data_dir, "/batches/", name_or_path, ".jsonl");
  if (FileExists(path)) return path;
  static constexpr const char* kNames[] = {
      "image_text", "interleaved", "speech", "text", "video", "mixed"};
  return absl::NotFoundError(
      absl::StrCat("there is no file and no shipped batch \"", name_or_path,
                   "\"; shipped are ", absl::StrJoin(kNames, ", ")));
}

// Checks that the batch has work for the job. InvalidArgument: no sample has
// work for any module. Prints a note for each module without work.
absl::Status CheckWork(const JobInput& input, const Context& context) {
  const ModelSpec& model = input.job.model;
  IdVector<ModuleId, bool> has_work(model.modules.size(), false);
  for (const SampleMetadata& sample : input.batch.samples) {
    const auto shapes = partition::SampleWork(model, sample);
    for (const ModuleId m : shapes.ids()) {
      if (!shapes[m].empty()) has_work[m] = true;
    }
  }
  std::vector<std::string> idle;
  for (const ModuleId m : model.modules.ids()) {
    if (!has_work[m]) idle.push_back(model.modules[m].name);
  }
  if (static_cast<int32_t>(idle.size()) == model.modules.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "batch %s has no work for job %s: none of its %d samples has anything "
        "for %s",
        input.batch_name, input.job.name, input.batch.samples.size(),
        absl::StrJoin(idle, ", ")));
  }
  for (const std::string& name : idle) {
    context.warn(absl::StrFormat("note: no sample of %s has work for %s",
                                 input.batch_name, name));
  }
  return absl::OkStatus();
}

// Prints a note for a step with fewer microbatches than the job asks for. It is
// legal, but its figures are not those of a full step.
void NoteShortStep(const JobInput& input, const partition::PackedStep& packed,
                   int64_t step, const Context& context) {
  const int64_t wanted =
      int64_t{input.job.training.microbatches} * input.job.parallel.dp;
  int64_t made = 0;
  for (const auto& replica : packed.packed) {
    made += static_cast<int64_t>(replica.size());
  }
  if (made >= wanted) return;
  context.warn(absl::StrFormat(
      "note: step %d is short: the samples of %s make %d of its %d "
      "microbatches",
      step, input.batch_name, made, wanted));
}

absl::StatusOr<std::vector<partition::PackedStep>> PackInOrder(
    const JobInput& input, int64_t num_steps) {
  std::vector<partition::PackedStep> steps;
  int64_t first_sample = 0;
  for (int64_t s = 0; s < num_steps; ++s) {
    if (s > 0 && first_sample >= input.batch.samples.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "batch %s has %d samples, enough for %d steps; --steps asks for %d "
          "(--shuffle SEED takes them again in other orders)",
          input.batch_name, input.batch.samples.size(), s, num_steps));
    }
    absl::StatusOr<partition::PackedStep> packed =
        partition::PackStep(input.job, input.batch, first_sample);
    if (!packed.ok()) {
      return absl::Status(packed.status().code(),
                          absl::StrCat("batch ", input.batch_name, ", step ", s,
                                       ": ", packed.status().message()));
    }
    first_sample += packed->num_samples;
    steps.push_back(*std::move(packed));
  }
  return steps;
}

// Returns the shipped profile of a device; null if there is none, or if the
// device's name looks like a path.
absl::StatusOr<std::shared_ptr<const DeviceProfile>> ShippedProfile(
    const std::string& device, const std::string& data_dir) {
  if (device.empty() || absl::StrContains(device, "/") ||
      absl::EndsWith(device, ".json")) {
    return nullptr;
  }
  absl::StatusOr<DeviceProfile> profile = LoadDeviceProfile(device, data_dir);
  if (profile.ok()) {
    return std::make_shared<const DeviceProfile>(*std::move(profile));
  }
  if (absl::IsNotFound(profile.status())) return nullptr;
  return profile.status();
}

void NoteRates(const DeviceSpec& device, const DeviceProfile* profile,
               const Context& context) {
  if (profile == nullptr) return;
  const std::string change = emulator::RateChange(device, *profile);
  if (change.empty()) return;
  context.warn(absl::StrCat("note: ", device.name, " has other rates than its ",
                            "profile was measured at (", change,
                            "): measured prices follow their ratio"));
}

}  // namespace

Flag DataDirFlag(std::string* value) {
  return {"data-dir", value, "DIR",
          "where the shipped jobs, models, clusters and batches are, "
          "instead of next to the binary or in PIPELOOM_DATA_DIR"};
}

void AppendJobFlags(JobFlags* values, bool with_steps,
                    std::vector<Flag>* flags) {
  flags->push_back({"batch", &values->batch, "FILE",
                    "samples as JSON Lines, or a shipped batch: image_text, "
                    "interleaved, speech, text, video, mixed"});
  if (with_steps) {
    flags->push_back({"steps",
                      &values->steps,
                      "N",
                      "how many training steps, one after another in the batch",
                      {},
                      1,
                      1e6});
  }
  flags->push_back({"replicas",
                    &values->replicas,
                    "N",
                    "plan only the first N data-parallel replicas; 0: all",
                    {},
                    0,
                    1e6});
  flags->push_back({"microbatches",
                    &values->microbatches,
                    "N",
                    "of a step and replica, instead of the job's",
                    {},
                    1,
                    1e6});
  flags->push_back({"memory-limit", &values->memory_limit, "SIZE",
                    "of one GPU, such as 64GiB, taken as it is, instead of the "
                    "job's"});
  flags->push_back(
      {"reserve", &values->reserve, "SHARE",
       "of the device's memory that plans leave free, such as 3%, "
       "instead of the job's; not taken from a limit that is set"});
  flags->push_back({"costs",
                    &values->costs,
                    "SOURCE",
                    "of operators: the profile that ships for the device, "
                    "where there is one, or its peak rates alone",
                    {"profile", "roofline"}});
  flags->push_back(
      {"assignment",
       &values->assignment,
       "HOW",
       "of a step's samples to replicas and microbatches, instead of the "
       "job's: as they come, even by cost, or as they come with the surplus of "
       "a microbatch deferred to later ones where that is faster",
       {"in-order", "balanced", "deferred"}});
  flags->push_back({"shuffle",
                    &values->shuffle,
                    "SEED",
                    "take the samples in a random order, epoch after epoch, "
                    "instead of once as they come",
                    {},
                    0});
  flags->push_back(DataDirFlag(&values->data_dir));
}

void AppendSearchFlags(SearchFlags* values, std::vector<Flag>* flags) {
  flags->push_back({"deadline", &values->deadline, "TIME",
                    "wall time of each search, such as 100ms; default: the "
                    "job's, or none with --evaluations"});
  flags->push_back({"evaluations",
                    &values->evaluations,
                    "N",
                    "schedules to try in each search; results then depend on "
                    "the seed alone",
                    {},
                    1});
  flags->push_back({"seed", &values->seed, "N", "of the search", {}, 0});
  flags->push_back({"threads",
                    &values->threads,
                    "N",
                    "of the search; 0: one for each core",
                    {},
                    0,
                    1024});
}

SearchSettings Settle(const SearchFlags& flags, const SearchSpec& defaults) {
  SearchSettings settings;
  settings.deadline = flags.deadline;
  settings.evaluations = flags.evaluations;
  if (!settings.evaluations && !settings.deadline && defaults.evaluations > 0) {
    settings.evaluations = defaults.evaluations;
  }
  if (!settings.evaluations && !settings.deadline) {
    settings.deadline = defaults.deadline;
  }
  settings.seed =
      flags.seed ? static_cast<uint64_t>(*flags.seed) : defaults.seed;
  settings.threads = flags.threads > 0
                         ? static_cast<int32_t>(flags.threads)
                         : static_cast<int32_t>(std::max(
                               1u, std::thread::hardware_concurrency()));
  return settings;
}

planner::SearchBudget StartBudget(const SearchSettings& settings,
                                  const Context& context) {
  planner::SearchBudget budget;
  if (settings.evaluations) budget.max_evaluations = *settings.evaluations;
  if (settings.deadline) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    const std::chrono::nanoseconds whole(settings.deadline->count());
    budget.expired = [begin, whole] { return Clock::now() - begin >= whole; };
    budget.spent = [begin, whole] {
      using Seconds = std::chrono::duration<double>;
      return Seconds(Clock::now() - begin) / Seconds(whole);
    };
  }
  budget.stop = context.stop;
  budget.threads = settings.threads;
  return budget;
}

absl::StatusOr<JobInput> ReadJobInput(const std::string& job,
                                      const JobFlags& flags,
                                      const Context& context) {
  if (flags.batch.empty()) {
    return UsageError("--batch is missing: a file or the name of a batch");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(flags.data_dir));
  const auto read = [](const std::string& path) { return ReadFile(path); };
  JobInput input;
  PIPELOOM_ASSIGN_OR_RETURN(input.job, formats::LoadJob(job, data_dir, read));
  TrainingSpec& training = input.job.training;
  if (flags.memory_limit) training.memory_limit = *flags.memory_limit;
  if (flags.reserve) {
    training.memory_reserve = flags.reserve->value;
    if (training.memory_limit > Bytes(0)) {
      context.warn(absl::StrFormat(
          "note: --reserve changes nothing: the memory limit of %s is set, and "
          "is taken as it is",
          FormatBytes(training.memory_limit)));
    }
  }
  if (flags.microbatches) {
    input.job.training.microbatches = static_cast<int32_t>(*flags.microbatches);
  }
  if (flags.assignment) {
    input.job.training.assignment = *flags.assignment == "balanced"
                                        ? SampleAssignment::kBalanced
                                        : SampleAssignment::kInOrder;
    input.defer = *flags.assignment == "deferred";
  }
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(input.job));
  if (flags.costs == "profile") {
    PIPELOOM_ASSIGN_OR_RETURN(
        input.profile, ShippedProfile(input.job.cluster.device.name, data_dir));
    NoteRates(input.job.cluster.device, input.profile.get(), context);
    for (const NodeGroup& group : input.job.cluster.node_groups) {
      const std::string& name = group.device.name;
      if (input.more_profiles.count(name) > 0) continue;
      PIPELOOM_ASSIGN_OR_RETURN(auto profile, ShippedProfile(name, data_dir));
      NoteRates(group.device, profile.get(), context);
      if (profile != nullptr) {
        input.more_profiles.emplace(name, std::move(profile));
      }
    }
  }
  if (flags.shuffle) input.shuffle = static_cast<uint64_t>(*flags.shuffle);
  input.replicas = input.job.parallel.dp;
  if (flags.replicas > input.replicas) {
    return UsageError(absl::StrFormat("--replicas %d: job %s has %d",
                                      flags.replicas, input.job.name,
                                      input.replicas));
  }
  if (flags.replicas > 0) input.replicas = static_cast<int32_t>(flags.replicas);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string path,
                            BatchPath(flags.batch, data_dir));
  input.batch_name = flags.batch;
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<std::string> warnings;
  PIPELOOM_ASSIGN_OR_RETURN(input.batch,
                            formats::ParseBatch(text, path, &warnings));
  for (const std::string& warning : warnings) {
    context.warn(absl::StrCat("note: ", warning));
  }
  if (input.batch.samples.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch ", path, " is empty: it needs at least one sample"));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckWork(input, context));
  return input;
}

std::string MemoryLimitText(const JobSpec& job) {
  std::string text =
      absl::StrCat("memory limit ", FormatBytes(job.MemoryLimit()), " a GPU");
  if (job.training.memory_limit == Bytes(0)) {
    absl::StrAppendFormat(&text, ", reserve %s (%g %%)",
                          FormatBytes(job.MemoryReserve()),
                          100 * job.training.memory_reserve);
  }
  return text;
}

std::unique_ptr<const emulator::OpCostModel> CostsOf(const JobInput& input) {
  return emulator::MakeOpCosts(
      input.job.cluster, input.job.parallel,
      [&](const std::string& device) -> const DeviceProfile* {
        if (device == input.job.cluster.device.name) return input.profile.get();
        const auto found = input.more_profiles.find(device);
        return found == input.more_profiles.end() ? nullptr
                                                  : found->second.get();
      });
}

absl::StatusOr<std::vector<partition::PackedStep>> PackSteps(
    const JobInput& input, int64_t num_steps, const Context& context) {
  std::vector<partition::PackedStep> steps;
  std::optional<partition::SampleCosts> sample_costs;
  if (input.job.training.assignment == SampleAssignment::kBalanced) {
    const emulator::StageCostModel costs(input.job, CostsOf(input));
    PIPELOOM_ASSIGN_OR_RETURN(
        sample_costs, partition::SampleCosts::Create(input.job, costs,
                                                     SampleOf(input.batch)));
  }
  if (input.shuffle) {
    PIPELOOM_ASSIGN_OR_RETURN(
        steps, partition::PackShuffledSteps(input.job, input.batch,
                                            *input.shuffle, num_steps));
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(steps, PackInOrder(input, num_steps));
  }
  for (size_t s = 0; s < steps.size(); ++s) {
    NoteShortStep(input, steps[s], static_cast<int64_t>(s), context);
    if (sample_costs.has_value()) {
      steps[s] = partition::BalanceStep(input.job, *sample_costs, steps[s]);
    }
  }
  return steps;
}

BatchMetadata SampleOf(const BatchMetadata& batch) {
  BatchMetadata sample;
  for (const SampleId s : batch.samples.ids()) {
    if (s.value() >= kMaxSampled) break;
    sample.samples.push_back(batch.samples[s]);
  }
  return sample;
}

absl::StatusOr<std::string> OneArgument(const std::vector<std::string>& args,
                                        absl::string_view what) {
  if (args.empty()) return UsageError(absl::StrCat(what, " is missing"));
  if (args.size() > 1) {
    return UsageError(absl::StrCat("unexpected argument \"", args[1], "\""));
  }
  return args[0];
}

}  // namespace pipeloom::cli
