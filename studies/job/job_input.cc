#include "studies/job/job_input.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/stage/stage_cost.h"
#include "formats/job/spec_loader.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/epochs.h"
#include "partition/batching/load_meter.h"
#include "partition/batching/token_count.h"
#include "planner/core/timed_budget.h"
#include "studies/job/device_prices.h"

namespace pipeloom::studies {
namespace {

constexpr int32_t kMaxSampled = 2048;

struct BatchText {
  std::string path{};
  std::string text{};
};

// Reads a batch; shipped batches are data_dir/batches/NAME.jsonl.
absl::StatusOr<BatchText> ReadBatch(const std::string& name_or_path,
                                    const std::string& data_dir,
                                    const formats::FileReader& read) {
  absl::StatusOr<std::string> text = read(name_or_path);
  if (text.ok()) return BatchText{name_or_path, *std::move(text)};
  if (!absl::IsNotFound(text.status()) ||
      absl::StrContains(name_or_path, "/") ||
      absl::EndsWith(name_or_path, ".jsonl")) {
    return text.status();
  }
  const std::string path =
      absl::StrCat(data_dir, "/batches/", name_or_path, ".jsonl");
  text = read(path);
  if (text.ok()) return BatchText{path, *std::move(text)};
  if (!absl::IsNotFound(text.status())) return text.status();
  static constexpr const char* kNames[] = {
      "image_text", "interleaved", "speech", "text", "video", "mixed"};
  return absl::NotFoundError(
      absl::StrCat("there is no file and no shipped batch \"", name_or_path,
                   "\"; shipped are ", absl::StrJoin(kNames, ", ")));
}

// Prints a note for images, clips or recordings that no module takes: their
// samples are planned without them.
void NoteUnusedMedia(const JobInput& input, const StudyContext& context) {
  struct Medium {
    const char* name;
    int64_t samples = 0;  // That have some.
    bool is_used = false;
  };
  Medium media[] = {{"images"}, {"videos"}, {"audio"}};
  const auto look = [&](Medium* medium, const SampleMetadata& alone) {
    ++medium->samples;
    if (medium->is_used) return;
    const auto shapes = partition::SampleWork(input.job.model, alone);
    for (const ModuleId m : shapes.ids()) {
      medium->is_used = medium->is_used || !shapes[m].empty();
    }
  };
  for (const SampleMetadata& sample : input.batch.samples) {
    if (!sample.images.empty()) look(&media[0], {.images = sample.images});
    if (!sample.videos.empty()) look(&media[1], {.videos = sample.videos});
    if (!sample.audio_seconds.empty()) {
      look(&media[2], {.audio_seconds = sample.audio_seconds});
    }
  }
  for (const Medium& medium : media) {
    if (medium.samples == 0 || medium.is_used) continue;
    context.Warn(absl::StrFormat(
        "note: %d samples of %s have %s, which no module of model %s takes: "
        "they are planned without",
        medium.samples, input.batch_name, medium.name, input.job.model.name));
  }
}

// InvalidArgument: any number of the batch's samples fits into one microbatch,
// as they have no work for the modules whose tokens count, nor what other
// limits count.
absl::Status CheckFills(const JobInput& input,
                        const IdVector<ModuleId, bool>& has_work) {
  const partition::LoadMeter meter(input.job);
  std::vector<std::string> counted;
  for (const ModuleId m : meter.counted()) {
    if (has_work[m]) return absl::OkStatus();
    counted.push_back(input.job.model.modules[m].name);
  }
  partition::Load all;
  for (const SampleMetadata& sample : input.batch.samples) {
    all += meter.Of(sample);
  }
  if (!meter.IsUnlimited(all)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "batch %s never fills a microbatch of job %s: "
      "training.microbatch_tokens, "
      "%d, counts tokens of %s, and none of its %d samples has any; take "
      "samples "
      "with some, or set training.microbatch_samples",
      input.batch_name, input.job.name, input.job.training.microbatch_tokens,
      absl::StrJoin(counted, ", "), input.batch.samples.size()));
}

// Checks that the batch has work for the job. InvalidArgument: no sample has
// work for any module, or none fills a part of a microbatch. Prints a note for
// each module without work.
absl::Status CheckWork(const JobInput& input, const StudyContext& context) {
  const ModelSpec& model = input.job.model;
  IdVector<ModuleId, bool> has_work(model.modules.size(), false);
  for (const SampleMetadata& sample : input.batch.samples) {
    const auto shapes = partition::SampleWork(model, sample);
    for (const ModuleId m : shapes.ids()) {
      if (!shapes[m].empty()) has_work[m] = true;
    }
  }
  NoteUnusedMedia(input, context);
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
  PIPELOOM_RETURN_IF_ERROR(CheckFills(input, has_work));
  for (const std::string& name : idle) {
    context.Warn(absl::StrFormat("note: no sample of %s has work for %s",
                                 input.batch_name, name));
  }
  return absl::OkStatus();
}

// The steps for which a count is not 0.
struct NotedSteps {
  int64_t first = -1;  // The first of them; -1: there is none.
  int64_t first_count = 0;
  int64_t others = 0;  // How many more there are.
  int64_t most = 0;    // The largest count of the others.
};

NotedSteps FindSteps(
    const std::vector<partition::PackedStep>& steps,
    const std::function<int64_t(const partition::PackedStep&)>& count_of) {
  NotedSteps noted;
  for (size_t s = 0; s < steps.size(); ++s) {
    const int64_t count = count_of(steps[s]);
    if (count == 0) continue;
    if (noted.first < 0) {
      noted.first = static_cast<int64_t>(s);
      noted.first_count = count;
    } else {
      ++noted.others;
      noted.most = std::max(noted.most, count);
    }
  }
  return noted;
}

// Prints a note for steps with fewer microbatches than the job asks for: in
// full for the first of them, one line for all others. They are legal, but
// their figures are not those of full steps.
void NoteShortSteps(const JobInput& input,
                    const std::vector<partition::PackedStep>& steps,
                    const StudyContext& context) {
  const int64_t wanted =
      int64_t{input.job.training.microbatches} * input.job.parallel.dp;
  const NotedSteps lacking =
      FindSteps(steps, [&](const partition::PackedStep& step) {
        int64_t made = 0;
        for (const auto& replica : step.packed) {
          made += static_cast<int64_t>(replica.size());
        }
        return std::max<int64_t>(0, wanted - made);
      });
  if (lacking.first < 0) return;
  context.Warn(absl::StrFormat(
      "note: step %d is short: the samples of %s make %d of its %d "
      "microbatches",
      lacking.first, input.batch_name, wanted - lacking.first_count, wanted));
  if (lacking.others == 0) return;
  context.Warn(absl::StrFormat(
      "note: %d more of %d steps are short; the shortest has %d microbatches",
      lacking.others, steps.size(), wanted - lacking.most));
}

// Does the same for steps with samples beyond the limits of a microbatch.
void NoteLongSamples(const JobInput& input,
                     const std::vector<partition::PackedStep>& steps,
                     const StudyContext& context) {
  const NotedSteps split =
      FindSteps(steps, [](const partition::PackedStep& step) {
        return int64_t{step.num_split_samples};
      });
  if (split.first < 0) return;
  context.Warn(absl::StrFormat(
      "note: step %d has %d samples longer than a microbatch "
      "(training.microbatch_tokens is %d): they are cut into pieces that do "
      "not attend to one another; an image, clip or recording as long is a "
      "longer microbatch of its own; cut them in the data, or raise the limits "
      "of training",
      split.first, split.first_count, input.job.training.microbatch_tokens));
  if (split.others == 0) return;
  context.Warn(absl::StrFormat(
      "note: %d more of %d steps have samples as long, at most %d",
      split.others, steps.size(), split.most));
}

absl::StatusOr<std::vector<partition::PackedStep>> PackInOrder(
    const JobInput& input, int64_t num_steps, const std::stop_token& stop) {
  std::vector<partition::PackedStep> steps;
  int64_t first_sample = 0;
  for (int64_t s = 0; s < num_steps; ++s) {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
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

// Returns the profile that prices a device of the job; null: its rates do.
const DeviceProfile* ProfileOf(const JobInput& input,
                               const std::string& device) {
  if (device == input.job.cluster.device.name) return input.profile.get();
  const auto found = input.more_profiles.find(device);
  return found == input.more_profiles.end() ? nullptr : found->second.get();
}

}  // namespace

SearchSettings Settle(const SearchOptions& options,
                      const SearchSpec& defaults) {
  SearchSettings settings;
  settings.deadline = options.deadline;
  settings.evaluations = options.evaluations;
  if (!settings.evaluations && !settings.deadline && defaults.evaluations > 0) {
    settings.evaluations = defaults.evaluations;
  }
  if (!settings.evaluations && !settings.deadline) {
    settings.deadline = defaults.deadline;
  }
  settings.seed =
      options.seed ? static_cast<uint64_t>(*options.seed) : defaults.seed;
  settings.threads = options.threads > 0
                         ? static_cast<int32_t>(options.threads)
                         : static_cast<int32_t>(std::max(
                               1u, std::thread::hardware_concurrency()));
  if (options.workers) {
    settings.workers = static_cast<int32_t>(*options.workers);
  } else if (defaults.workers > 0) {
    settings.workers = defaults.workers;
  }
  return settings;
}

planner::SearchBudget StartBudget(const SearchSettings& settings,
                                  const std::stop_token& stop) {
  planner::SearchBudget budget;
  if (settings.evaluations) budget.max_evaluations = *settings.evaluations;
  if (settings.deadline) {
    planner::EndAfter(std::chrono::steady_clock::now(),
                      std::chrono::nanoseconds(settings.deadline->count()),
                      &budget);
  }
  budget.stop = stop;
  budget.threads = settings.threads;
  budget.workers = settings.workers;
  return budget;
}

absl::StatusOr<JobInput> LoadJobInput(const std::string& job,
                                      const JobOptions& options,
                                      const StudyContext& context) {
  PIPELOOM_ASSIGN_OR_RETURN(
      JobSpec spec, formats::LoadJob(job, options.data_dir, context.read));
  return MakeJobInput(std::move(spec), options, context);
}

absl::StatusOr<JobInput> MakeJobInput(JobSpec job, const JobOptions& options,
                                      const StudyContext& context) {
  JobInput input;
  input.job = std::move(job);
  TrainingSpec& training = input.job.training;
  if (options.memory_limit) training.memory_limit = *options.memory_limit;
  if (options.reserve) {
    training.memory_reserve = *options.reserve;
    if (training.memory_limit > Bytes(0)) {
      context.Warn(absl::StrFormat(
          "note: --reserve changes nothing: the memory limit of %s is set, and "
          "is taken as it is",
          FormatBytes(training.memory_limit)));
    }
  }
  if (options.microbatches) {
    input.job.training.microbatches =
        static_cast<int32_t>(*options.microbatches);
  }
  if (options.assignment) {
    input.job.training.assignment = *options.assignment == "balanced"
                                        ? SampleAssignment::kBalanced
                                        : SampleAssignment::kInOrder;
    input.defer = *options.assignment == "deferred";
  }
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(input.job));
  if (options.costs == "profile") {
    input.profiles = formats::DeviceProfiles(options.data_dir, context.read);
    for (const std::string& file : options.profiles) {
      PIPELOOM_RETURN_IF_ERROR(input.profiles.Add(file));
    }
    PIPELOOM_RETURN_IF_ERROR(FindProfiles(&input));
    for (const std::string& note : PriceNotes(input)) context.Warn(note);
  }
  if (options.shuffle) input.shuffle = static_cast<uint64_t>(*options.shuffle);
  input.replicas = input.job.parallel.dp;
  return input;
}

absl::Status FindProfiles(JobInput* input) {
  const ClusterSpec& cluster = input->job.cluster;
  PIPELOOM_ASSIGN_OR_RETURN(input->profile,
                            input->profiles.Find(cluster.device.name));
  input->more_profiles.clear();
  for (const NodeGroup& group : cluster.node_groups) {
    const std::string& name = group.device.name;
    PIPELOOM_ASSIGN_OR_RETURN(auto profile, input->profiles.Find(name));
    if (profile != nullptr) {
      input->more_profiles.emplace(name, std::move(profile));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> PriceNotes(const JobInput& input) {
  std::vector<std::string> notes;
  const auto add = [&](const DeviceSpec& device) {
    std::string note = PriceNote(device, ProfileOf(input, device.name));
    if (note.empty() || absl::c_linear_search(notes, note)) return;
    notes.push_back(std::move(note));
  };
  add(input.job.cluster.device);
  for (const NodeGroup& group : input.job.cluster.node_groups) {
    add(group.device);
  }
  return notes;
}

absl::Status LoadBatch(const std::string& name, const std::string& data_dir,
                       const StudyContext& context, JobInput* input) {
  input->batch_name = name;
  PIPELOOM_ASSIGN_OR_RETURN(const BatchText file,
                            ReadBatch(name, data_dir, context.read));
  std::vector<std::string> warnings;
  PIPELOOM_ASSIGN_OR_RETURN(
      input->batch, formats::ParseBatch(file.text, file.path, &warnings));
  for (const std::string& warning : warnings) {
    context.Warn(absl::StrCat("note: ", warning));
  }
  if (input->batch.samples.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch ", file.path, " is empty: it needs at least one sample"));
  }
  return CheckWork(*input, context);
}

std::unique_ptr<const emulator::OpCostModel> CostsOf(const JobInput& input) {
  return emulator::MakeOpCosts(
      input.job.cluster, input.job.parallel,
      [&](const std::string& device) { return ProfileOf(input, device); });
}

absl::StatusOr<std::vector<partition::PackedStep>> PackSteps(
    const JobInput& input, int64_t num_steps, const StudyContext& context) {
  std::vector<partition::PackedStep> steps;
  std::optional<partition::SampleCosts> sample_costs;
  if (input.job.training.assignment == SampleAssignment::kBalanced) {
    const emulator::StageCostModel costs(input.job, CostsOf(input));
    PIPELOOM_ASSIGN_OR_RETURN(
        sample_costs, partition::SampleCosts::Create(input.job, costs,
                                                     SampleOf(input.batch)));
  }
  if (input.shuffle) {
    PIPELOOM_ASSIGN_OR_RETURN(steps, partition::PackShuffledSteps(
                                         input.job, input.batch, *input.shuffle,
                                         num_steps, context.stop));
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(steps,
                              PackInOrder(input, num_steps, context.stop));
  }
  NoteShortSteps(input, steps, context);
  NoteLongSamples(input, steps, context);
  for (size_t s = 0; s < steps.size(); ++s) {
    if (context.stop.stop_requested()) return absl::CancelledError("stopped");
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

}  // namespace pipeloom::studies
