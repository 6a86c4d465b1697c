#include "cli/input/job_input.h"

#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "formats/job/device_share_notes.h"
#include "formats/job/device_swap.h"
#include "formats/job/spec_loader.h"
#include "ir/job/job_notes.h"

namespace pipeloom::cli {

Flag DataDirFlag(std::string* value) {
  return {"data-dir", value, "DIR",
          "where the shipped jobs, models, clusters and batches are, "
          "instead of next to the binary or in PIPELOOM_DATA_DIR"};
}

Flag ProfileFlag(Repeated* values) {
  return {"profile", values, "FILE",
          "measured profile of a device (of `pipeloom calibrate`), by its "
          "field \"device\", instead of one that ships; may stand several "
          "times"};
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
  flags->push_back({"set", &values->sets, "PATH=VALUE",
                    "change a field of the job, such as parallel.pp=8, as "
                    "`whatif` does; may stand several times"});
  flags->push_back({"microbatches",
                    &values->microbatches,
                    "N",
                    "of a step and replica, instead of the job's",
                    {},
                    1,
                    1e6});
  flags->push_back({"memory-limit", &values->memory_limit, "SIZE",
                    "of one GPU, such as 64GiB (a bare number is bytes), taken "
                    "as it is, instead of the job's"});
  flags->push_back(
      {"reserve", &values->reserve_share, "SHARE",
       "of the device's memory that plans leave free, such as 3%, "
       "instead of the job's; not taken from a limit that is set"});
  flags->push_back({"costs",
                    &values->costs,
                    "SOURCE",
                    "of operators: the profile of the device (--profile, or "
                    "one that ships), where there is one, or its peak rates "
                    "alone",
                    {"profile", "roofline"}});
  flags->push_back(ProfileFlag(&values->profile_files));
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

void AppendSearchFlags(studies::SearchOptions* values, std::vector<Flag>* flags,
                       absl::string_view deadline_default) {
  const bool of_job = deadline_default.empty();
  flags->push_back(
      {"deadline", &values->deadline, "TIME",
       absl::StrCat("wall time of each search, such as 100ms; default: ",
                    of_job ? "the job's, or none with --evaluations"
                           : deadline_default)});
  flags->push_back(
      {"evaluations",
       &values->evaluations,
       "N",
       absl::StrCat("schedules to try in each search",
                    of_job ? ", of which a step makes several, each of at "
                             "least one: reports count those of all"
                           : "",
                    "; results then depend on the seed alone"),
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
  flags->push_back({"workers",
                    &values->workers,
                    "N",
                    absl::StrCat("searchers that share the evaluations, 2",
                                 of_job ? " unless the job says otherwise" : "",
                                 "; more pay with as many cores or much time"),
                    {},
                    1,
                    planner::kMostWorkers});
}

namespace {

absl::StatusOr<std::vector<formats::JobOverride>> SetsOf(
    const JobFlags& flags) {
  std::vector<formats::JobOverride> changes;
  for (const std::string& set : flags.sets.values) {
    absl::StatusOr<formats::JobOverride> change = formats::ParseOverride(set);
    if (!change.ok()) {
      return UsageError(absl::StrCat("--set: ", change.status().message()));
    }
    changes.push_back(*std::move(change));
  }
  return changes;
}

}  // namespace

absl::StatusOr<std::vector<formats::JobOverride>> ChangesOf(
    const JobFlags& flags) {
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<formats::JobOverride> changes,
                            SetsOf(flags));
  if (flags.microbatches) {
    changes.push_back(
        {"training.microbatches", absl::StrCat(*flags.microbatches)});
  }
  if (flags.memory_limit) {
    changes.push_back({"training.memory_limit_bytes",
                       absl::StrCat(flags.memory_limit->count())});
  }
  if (flags.reserve_share) {
    changes.push_back(
        {"training.memory_reserve", absl::StrCat(flags.reserve_share->value)});
  }
  return changes;
}

absl::StatusOr<JobSpec> ReadJob(const std::string& job, const JobFlags& flags) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(flags.data_dir));
  const auto read = [](const std::string& path) { return ReadFile(path); };
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<formats::JobOverride> sets,
                            SetsOf(flags));
  if (sets.empty()) return formats::LoadJob(job, data_dir, read);
  PIPELOOM_ASSIGN_OR_RETURN(const formats::JobTemplate file,
                            formats::JobTemplate::Load(job, data_dir, read));
  absl::StatusOr<JobSpec> changed = file.With(sets);
  if (changed.ok() || changed.status() == file.With({}).status()) {
    return changed;
  }
  return UsageError(absl::StrCat("--set ",
                                 absl::StrJoin(flags.sets.values, " --set "),
                                 ": ", changed.status().message()));
}

namespace {

// Returns the job, its batch and its changes as arguments of a command.
absl::StatusOr<std::string> ArgumentsOf(const std::string& job,
                                        const JobFlags& flags) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<formats::JobOverride> changes,
                            ChangesOf(flags));
  std::string text = absl::StrCat(job, " --batch ", flags.batch);
  for (const formats::JobOverride& change : changes) {
    absl::StrAppend(&text, " --set '", change.path, "=", change.value, "'");
  }
  for (const std::string& file : flags.profile_files.values) {
    absl::StrAppend(&text, " --profile ", file);
  }
  return text;
}

// A UsageError: --profile names a profile that prices no device of the job.
// Prints a note instead if the profile may be left.
absl::Status CheckProfilesUsed(const JobFlags& flags,
                               const studies::JobInput& input,
                               const Context& context) {
  std::vector<std::string> devices = {input.job.cluster.device.name};
  for (const NodeGroup& group : input.job.cluster.node_groups) {
    if (!absl::c_linear_search(devices, group.device.name)) {
      devices.push_back(group.device.name);
    }
  }
  for (const auto& given : input.profiles.given()) {
    bool is_used = input.profile == given.profile;
    for (const auto& [device, profile] : input.more_profiles) {
      is_used = is_used || profile == given.profile;
    }
    if (is_used) continue;
    const std::string text = absl::StrCat(
        "--profile ", given.file, ": is of device ", given.profile->device,
        ", and cluster ", input.job.cluster.name, " has ",
        absl::StrJoin(devices, ", "));
    if (!flags.may_leave_profiles) {
      return UsageError(
          absl::StrCat(text,
                       "; give a profile of that, or name the device so in the "
                       "cluster file if it is that device"));
    }
    context.warn(absl::StrCat("note: ", text,
                              ": it prices only changes to that device"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<studies::JobInput> ReadJobInput(const std::string& job,
                                               const JobFlags& flags,
                                               const Context& context) {
  if (flags.batch.empty()) {
    return UsageError("--batch is missing: a file or the name of a batch");
  }
  const studies::StudyContext study = StudyContextOf(context);
  studies::JobOptions options = flags;
  options.profiles = flags.profile_files.values;
  if (!options.profiles.empty() && options.costs == "roofline") {
    return UsageError(
        "--profile and --costs roofline: give one of them, as peak rates need "
        "no profile");
  }
  if (flags.reserve_share) options.reserve = flags.reserve_share->value;
  PIPELOOM_ASSIGN_OR_RETURN(options.data_dir, FindDataDir(flags.data_dir));
  PIPELOOM_ASSIGN_OR_RETURN(JobSpec spec, ReadJob(job, flags));
  JobSpec noted = spec;
  if (flags.memory_limit) noted.training.memory_limit = *flags.memory_limit;
  std::vector<std::string> notes = JobNotes(noted);
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<formats::JobOverride> sets,
                            SetsOf(flags));
  const auto read = [](const std::string& path) { return ReadFile(path); };
  for (std::vector<std::string> more :
       {formats::DeviceShareNotes(spec.cluster, options.data_dir, read),
        formats::DeviceSwapNotes(spec.cluster, sets, options.data_dir, read)}) {
    absl::c_move(more, std::back_inserter(notes));
  }
  for (const std::string& note : notes) {
    context.warn(absl::StrCat("note: ", note));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      studies::JobInput input,
      studies::MakeJobInput(std::move(spec), options, study));
  PIPELOOM_RETURN_IF_ERROR(CheckProfilesUsed(flags, input, context));
  PIPELOOM_ASSIGN_OR_RETURN(input.arguments, ArgumentsOf(job, flags));
  NoteMeasured(sets, input, context);
  if (flags.replicas > input.replicas) {
    return UsageError(absl::StrFormat("--replicas %d: job %s has %d",
                                      flags.replicas, input.job.name,
                                      input.replicas));
  }
  if (flags.replicas > 0) input.replicas = static_cast<int32_t>(flags.replicas);
  PIPELOOM_RETURN_IF_ERROR(
      studies::LoadBatch(flags.batch, options.data_dir, study, &input));
  return input;
}

void NoteMeasured(absl::Span<const formats::JobOverride> changes,
                  const studies::JobInput& input, const Context& context) {
  if (input.profile == nullptr) return;
  for (const formats::JobOverride& change : changes) {
    if (!absl::StartsWith(change.path, "cluster.device.") ||
        !absl::EndsWith(change.path, "_efficiency")) {
      continue;
    }
    context.warn(absl::StrCat("note: ", change.path,
                              " counts only for operators that the profile of ",
                              input.profile->device,
                              " has no measurements of; --costs roofline uses "
                              "it for all"));
  }
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

absl::StatusOr<std::string> OneArgument(const std::vector<std::string>& args,
                                        absl::string_view what) {
  if (args.empty()) return UsageError(absl::StrCat(what, " is missing"));
  if (args.size() > 1) {
    return UsageError(absl::StrCat("unexpected argument \"", args[1], "\""));
  }
  return args[0];
}

}  // namespace pipeloom::cli
