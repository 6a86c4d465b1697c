#include "studies/whatif/whatif_run.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "emulator/cost/shared_costs.h"
#include "emulator/step/emulate_step.h"
#include "formats/profile/profile_reader.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/plan_bound.h"
#include "planner/core/executor.h"
#include "planner/lower/lower_plan.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "proto/convert/job_proto.h"
#include "studies/job/planner_input.h"

namespace pipeloom::studies {
namespace {

constexpr absl::string_view kJournalMark = "pipeloom-whatif-2";

// Returns the profile that prices a device.
absl::StatusOr<std::shared_ptr<const DeviceProfile>> ProfileOf(
    const WhatIfInput& input, const std::string& device,
    const formats::FileReader& read) {
  if (input.costs != "profile" || device.empty() ||
      device.find('/') != std::string::npos) {
    return std::shared_ptr<const DeviceProfile>();
  }
  if (device == input.base.job.cluster.device.name) return input.base.profile;
  struct Known {
    Mutex mutex{};
    std::map<std::string, std::shared_ptr<const DeviceProfile>> profiles
        ABSL_GUARDED_BY(mutex){};
  };
  static auto* const known = new Known;
  const MutexLock lock(&known->mutex);
  const std::string key = absl::StrCat(input.data_dir, "\n", device);
  if (const auto it = known->profiles.find(key); it != known->profiles.end()) {
    return it->second;
  }
  absl::StatusOr<DeviceProfile> profile =
      formats::LoadDeviceProfile(device, input.data_dir, read);
  std::shared_ptr<const DeviceProfile> result;
  if (profile.ok()) {
    result = std::make_shared<const DeviceProfile>(*std::move(profile));
  } else if (!absl::IsNotFound(profile.status())) {
    return profile.status();
  }
  return known->profiles[key] = result;
}

// Returns `result` with another plan of its step and the trace of that.
planner::PlanResult With(ExecutionPlan plan, StepTrace trace,
                         const planner::PlanResult& result) {
  planner::PlanResult changed = result;
  changed.plan.graph = std::move(plan.graph);
  changed.plan.programs = std::move(plan.programs);
  changed.predicted = std::move(trace);
  const planner::NamedBound bound =
      planner::PlanBound(changed.plan.graph, /*memory=*/nullptr);
  changed.lower_bound = Nanoseconds(bound.time);
  changed.bound_source = bound.source;
  return changed;
}

// Returns the plan's step with one slower rank, with the same programs or new
// ones.
absl::StatusOr<planner::PlanResult> WithSlowRank(
    const WhatIfCase& what, const planner::PlanResult& result,
    const planner::PreparedJob& prepared, const SearchSettings& settings,
    const StudyContext& context) {
  const StageGraph& graph = result.plan.graph;
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (Task& task : tasks) {
    if (task.rank.value() != what.slow_rank) continue;
    task.duration = Duration(std::llround(
        static_cast<double>(task.duration.count()) * what.slow_factor));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      StageGraph slower,
      StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                         std::move(tasks), graph.edges()));
  ExecutionPlan plan = result.plan;
  plan.graph = slower;
  PIPELOOM_ASSIGN_OR_RETURN(StepTrace trace, emulator::EmulateStep(plan));
  if (!what.replan) return With(std::move(plan), std::move(trace), result);
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::SearchResult found,
      prepared.strategy->MakeSchedule(slower, prepared.partition, settings.seed,
                                      StartBudget(settings, context.stop)));
  PIPELOOM_ASSIGN_OR_RETURN(ExecutionPlan anew,
                            planner::LowerPlan(slower, found.schedule));
  PIPELOOM_ASSIGN_OR_RETURN(StepTrace other, emulator::EmulateStep(anew));
  // The search does not see buffers of received tensors, so its order is used
  // only if these fit, too.
  bool fits = true;
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(other);
  for (const RankId r : peaks.ids()) {
    const Bytes limit = slower.rank(r).memory.limit;
    fits = fits && (limit <= Bytes(0) || peaks[r].total <= limit);
  }
  return fits && other.finish < trace.finish
             ? With(std::move(anew), std::move(other), result)
             : With(std::move(plan), std::move(trace), result);
}

// Returns the step with every stage recomputed, whether needed or not.
absl::StatusOr<planner::PlanResult> Recomputed(
    const planner::PlanResult& result, const planner::PreparedJob& prepared,
    const SearchSettings& settings, const StudyContext& context) {
  partition::GraphOptions options;
  options.split_backward = prepared.strategy->split_backward();
  options.memory = PolicyByStage(AllRecomputed(prepared.partition),
                                 prepared.partition, result.microbatches);
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(*prepared.costs, prepared.partition,
                                 result.microbatches, options));
  PIPELOOM_ASSIGN_OR_RETURN(const planner::SearchResult found,
                            prepared.strategy->MakeSchedule(
                                built.graph, prepared.partition, settings.seed,
                                StartBudget(settings, context.stop)));
  PIPELOOM_ASSIGN_OR_RETURN(ExecutionPlan plan,
                            planner::LowerPlan(built.graph, found.schedule));
  PIPELOOM_ASSIGN_OR_RETURN(StepTrace trace, emulator::EmulateStep(plan));
  return With(std::move(plan), std::move(trace), result);
}

absl::StatusOr<WhatIfOutcome> Run(const WhatIfInput& input,
                                  const WhatIfCase& what,
                                  const StudyContext& quiet,
                                  PlannedStep* first) {
  JobInput job;
  job.batch_name = input.base.batch_name;
  if (what.changes.empty()) {
    job.job = input.base.job;
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(job.job, input.job.With(what.changes));
    if (input.assigned) {
      job.job.training.assignment = input.base.job.training.assignment;
    }
  }
  job.shuffle = input.base.shuffle;
  job.more_profiles = input.base.more_profiles;
  PIPELOOM_ASSIGN_OR_RETURN(
      job.profile, ProfileOf(input, job.job.cluster.device.name, quiet.read));
  job.batch = what.video_factor == 1
                  ? input.base.batch
                  : WithLongerVideos(input.base.batch, what.video_factor);
  job.replicas = job.job.parallel.dp;
  if (input.replicas > 0) {
    job.replicas =
        std::min<int32_t>(job.replicas, static_cast<int32_t>(input.replicas));
  }
  if (what.slow_rank >= job.job.parallel.pp) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there is no rank %d: the job has %d", what.slow_rank,
                        job.job.parallel.pp));
  }
  PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                            PackSteps(job, input.steps, quiet));
  std::optional<Partition> partition;
  if (input.partition.make) {
    PIPELOOM_ASSIGN_OR_RETURN(partition, input.partition.make(job));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto planner,
      MakeJobPlanner(job, input.schedule, input.prices.Of(job), /*correct=*/{},
                     std::move(partition), quiet.stop));
  const planner::PreparedJob& prepared = planner->prepared();
  SearchSettings settings = Settle(input.search, job.job.search);
  settings.threads = 1;
  settings.defer = input.base.defer;
  std::vector<PlannedStep> steps;
  WhatIfOutcome outcome;
  for (size_t s = 0; s < packed.size(); ++s) {
    PIPELOOM_ASSIGN_OR_RETURN(
        PlannedStep planned,
        PlanReplicas(prepared, packed[s], static_cast<int64_t>(s), job.replicas,
                     settings, quiet.stop, /*progress=*/{}));
    if (what.slow_rank >= 0 || what.recompute_all) {
      for (planner::PlanResult& replica : planned.replicas) {
        absl::StatusOr<planner::PlanResult> changed =
            what.recompute_all
                ? Recomputed(replica, prepared, settings, quiet)
                : WithSlowRank(what, replica, prepared, settings, quiet);
        if (!changed.ok()) return changed.status();
        replica = *std::move(changed);
      }
    }
    outcome.samples += planned.num_samples;
    outcome.cuts_more =
        outcome.cuts_more || partition::CutsMore(packed[s], input.base.job);
    steps.push_back(std::move(planned));
  }
  const StepMeans means = MeansOf(steps);
  outcome.step_time = means.step_time;
  Duration bound{};
  for (const PlannedStep& step : steps) {
    bound += step.lower_bound();
    for (const planner::PlanResult& replica : step.replicas) {
      for (const MemoryPeak& peak : MemoryPeaks(replica.predicted)) {
        outcome.peak = std::max(outcome.peak, peak.total);
      }
    }
  }
  outcome.lower_bound = bound / static_cast<int64_t>(steps.size());
  outcome.bubble_ratio = means.bubble_ratio;
  outcome.epilogue_ratio = means.epilogue_ratio;
  outcome.mfu = means.mfu;
  outcome.limit = job.job.MemoryLimit();
  outcome.gpus = job.job.parallel.num_gpus();
  outcome.samples /= static_cast<int64_t>(steps.size());
  if (first != nullptr) *first = std::move(steps[0]);
  return outcome;
}

Fingerprint KeyOf(const WhatIfInput& input, const Fingerprint& common,
                  const WhatIfCase& what) {
  FingerprintBuilder builder;
  builder.Add(common).Add(input.steps).Add(input.replicas);
  builder.Add(input.schedule).Add(input.costs);
  if (input.partition.make) builder.Add(input.partition.name);
  builder.Add(input.base.job.training.assignment);
  builder.Add(input.base.shuffle.value_or(0)).Add(input.base.defer);
  builder.Add(input.search.deadline.value_or(Duration(-1)).count());
  builder.Add(input.search.evaluations.value_or(-1));
  builder.Add(input.search.seed.value_or(-1));
  what.AddTo(&builder);
  return builder.Build();
}

// Returns the fingerprint of the job's values and the batch, which all cases
// share.
Fingerprint CommonKey(const WhatIfInput& input) {
  FingerprintBuilder builder;
  // All fields are added, as a job file of the same name may have been edited.
  builder.Add(kJournalMark);
  builder.Add(convert::ToProto(input.base.job).SerializeAsString());
  for (const SampleMetadata& sample : input.base.batch.samples) {
    builder.Add(sample.text_tokens).Add(sample.images.size());
    for (const ImageSize& image : sample.images) {
      builder.Add(image.width).Add(image.height);
    }
    for (const VideoClip& clip : sample.videos) {
      builder.Add(clip.frames).Add(clip.width).Add(clip.seconds);
    }
    for (const double seconds : sample.audio_seconds) builder.Add(seconds);
  }
  return builder.Build();
}

// Writes outcomes to the journal, from any thread.
class JournalWriter {
 public:
  // `file` is open, or null to write nothing.
  JournalWriter(const std::string& path, std::FILE* file)
      : path_(path), file_(file) {}

  bool is_open() const { return file_ != nullptr; }
  void Append(const std::string& line) {
    const MutexLock lock(&mutex_);
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() ||
        std::fflush(file_) != 0) {
      error_ = Error();
    }
  }
  // Returns the error of this or of the last write that failed.
  absl::Status Close() {
    const MutexLock lock(&mutex_);
    if (file_ != nullptr && std::fclose(file_) != 0 && error_.ok()) {
      error_ = Error();
    }
    return error_;
  }

 private:
  absl::Status Error() const {
    return absl::DataLossError(absl::StrCat(path_, ": ", std::strerror(errno)));
  }

  const std::string& path_;
  Mutex mutex_{};
  std::FILE* const file_ ABSL_PT_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace

struct SharedPrices::State {
  struct Entry {
    ClusterSpec cluster{};
    ParallelLayout parallel{};
    std::shared_ptr<const DeviceProfile> profile{};
    std::shared_ptr<const emulator::OpCostModel> prices{};
  };
  Mutex mutex{};
  std::deque<Entry> entries ABSL_GUARDED_BY(mutex){};  // The newest ones.
};

SharedPrices::SharedPrices() : state_(std::make_shared<State>()) {}

std::unique_ptr<const emulator::OpCostModel> SharedPrices::Of(
    const JobInput& job) const {
  constexpr size_t kMax = 32;  // Some megabytes each.
  {
    const MutexLock lock(&state_->mutex);
    for (const State::Entry& entry : state_->entries) {
      if (entry.profile == job.profile && entry.parallel == job.job.parallel &&
          entry.cluster == job.job.cluster) {
        return std::make_unique<emulator::SharedCosts>(entry.prices);
      }
    }
  }
  std::shared_ptr<const emulator::OpCostModel> prices = CostsOf(job);
  const MutexLock lock(&state_->mutex);
  state_->entries.push_back(
      {job.job.cluster, job.job.parallel, job.profile, prices});
  if (state_->entries.size() > kMax) state_->entries.pop_front();
  return std::make_unique<emulator::SharedCosts>(std::move(prices));
}

absl::StatusOr<WhatIfOutcome> RunCase(const WhatIfInput& input,
                                      const WhatIfCase& what,
                                      const StudyContext& context,
                                      PlannedStep* planned) {
  StudyContext quiet;
  quiet.read = context.read;
  quiet.stop = context.stop;
  absl::StatusOr<WhatIfOutcome> outcome = Run(input, what, quiet, planned);
  if (outcome.ok()) return outcome;
  if (context.stop.stop_requested()) return absl::CancelledError("stopped");
  WhatIfOutcome failed;
  failed.error = std::string(outcome.status().message());
  if (failed.error.empty()) failed.error = "unknown";
  return failed;
}

std::string JournalLine(const Fingerprint& key, const WhatIfOutcome& outcome) {
  const std::string error = absl::StrReplaceAll(
      outcome.error, {{"\\", "\\\\"}, {"\t", "\\t"}, {"\n", "\\n"}});
  const std::string body = absl::StrFormat(
      "%s\t%016x%016x\t%d\t%d\t%.17g\t%.17g\t%.17g\t%d\t%d\t%d\t%d\t%d\t%s",
      std::string(kJournalMark), key.high, key.low, outcome.step_time.count(),
      outcome.lower_bound.count(), outcome.bubble_ratio, outcome.epilogue_ratio,
      outcome.mfu, outcome.peak.count(), outcome.limit.count(), outcome.gpus,
      outcome.samples, outcome.cuts_more ? 1 : 0, error);
  return absl::StrFormat("%s\t%016x\n", body,
                         FingerprintBuilder().Add(body).Build().low);
}

bool ParseJournalLine(absl::string_view line, Fingerprint* key,
                      WhatIfOutcome* outcome) {
  const size_t tab = line.rfind('\t');
  if (tab == absl::string_view::npos) return false;
  const absl::string_view body = line.substr(0, tab);
  if (line.substr(tab + 1) !=
      absl::StrFormat("%016x", FingerprintBuilder().Add(body).Build().low)) {
    return false;
  }
  const std::vector<absl::string_view> fields = absl::StrSplit(body, '\t');
  if (fields.size() != 13 || fields[0] != kJournalMark ||
      fields[1].size() != 32) {
    return false;
  }
  int64_t step = 0, bound = 0, peak = 0, limit = 0;
  if (!absl::SimpleHexAtoi(fields[1].substr(0, 16), &key->high) ||
      !absl::SimpleHexAtoi(fields[1].substr(16), &key->low) ||
      !absl::SimpleAtoi(fields[2], &step) ||
      !absl::SimpleAtoi(fields[3], &bound) ||
      !absl::SimpleAtod(fields[4], &outcome->bubble_ratio) ||
      !absl::SimpleAtod(fields[5], &outcome->epilogue_ratio) ||
      !absl::SimpleAtod(fields[6], &outcome->mfu) ||
      !absl::SimpleAtoi(fields[7], &peak) ||
      !absl::SimpleAtoi(fields[8], &limit) ||
      !absl::SimpleAtoi(fields[9], &outcome->gpus) ||
      !absl::SimpleAtoi(fields[10], &outcome->samples) ||
      !absl::SimpleAtob(fields[11], &outcome->cuts_more)) {
    return false;
  }
  outcome->step_time = Duration(step);
  outcome->lower_bound = Duration(bound);
  outcome->peak = Bytes(peak);
  outcome->limit = Bytes(limit);
  outcome->error = absl::StrReplaceAll(
      fields[12], {{"\\\\", "\\"}, {"\\t", "\t"}, {"\\n", "\n"}});
  return true;
}

absl::StatusOr<std::vector<WhatIfOutcome>> RunCases(
    const WhatIfInput& input, const std::vector<WhatIfCase>& cases,
    int32_t threads, const std::string& journal, const StudyContext& context) {
  const Fingerprint common = CommonKey(input);
  std::map<Fingerprint, WhatIfOutcome> known;
  std::FILE* file = nullptr;
  if (!journal.empty()) {
    bool torn = false;
    const absl::StatusOr<std::string> text = context.read(journal);
    if (text.ok()) {
      torn = !text->empty() && text->back() != '\n';
      for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
        Fingerprint key;
        WhatIfOutcome outcome;
        if (ParseJournalLine(line, &key, &outcome)) known[key] = outcome;
      }
      if (known.empty() && !text->empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            journal,
            " is no journal of this version of whatif; it is left as it is"));
      }
    } else if (!absl::IsNotFound(text.status())) {
      return text.status();
    }
    file = std::fopen(journal.c_str(), "a");
    if (file == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(journal, ": ", std::strerror(errno)));
    }
    if (torn) std::fputc('\n', file);
  }
  std::vector<WhatIfOutcome> outcomes(cases.size());
  std::vector<int32_t> open;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto it = known.find(KeyOf(input, common, cases[i]));
    if (it == known.end()) {
      open.push_back(static_cast<int32_t>(i));
    } else {
      outcomes[i] = it->second;
    }
  }
  if (open.size() < cases.size()) {
    context.Warn(absl::StrFormat("note: %d of %d configurations are in %s",
                                 cases.size() - open.size(), cases.size(),
                                 journal));
  }
  JournalWriter writer(journal, file);
  std::atomic<int64_t> done{static_cast<int64_t>(cases.size() - open.size())};
  std::atomic<bool> cancelled{false};
  {
    const ProgressCallback progress = context.StartProgress(
        "trying configurations", static_cast<int64_t>(cases.size()));
    progress(done, "");
    planner::ParallelFor(
        threads, static_cast<int32_t>(open.size()), [&](int32_t k) {
          if (context.stop.stop_requested()) {
            cancelled = true;
            return;
          }
          const auto i = static_cast<size_t>(open[static_cast<size_t>(k)]);
          absl::StatusOr<WhatIfOutcome> outcome =
              RunCase(input, cases[i], context);
          if (!outcome.ok()) {
            cancelled = true;
            return;
          }
          outcomes[i] = *std::move(outcome);
          if (writer.is_open()) {
            writer.Append(
                JournalLine(KeyOf(input, common, cases[i]), outcomes[i]));
          }
          progress(++done, cases[i].label);
        });
  }
  PIPELOOM_RETURN_IF_ERROR(writer.Close());
  if (cancelled) {
    context.Warn(absl::StrFormat(
        "%d of %d configurations are done%s", done.load(), cases.size(),
        journal.empty() ? "; with --journal FILE they would not be lost"
                        : "; the same command goes on from there"));
    return absl::CancelledError("stopped");
  }
  return outcomes;
}

std::vector<bool> ParetoFront(const std::vector<WhatIfOutcome>& outcomes) {
  std::vector<bool> front(outcomes.size(), false);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const WhatIfOutcome& a = outcomes[i];
    if (!a.ok() || a.cuts_more) continue;
    front[i] = std::none_of(
        outcomes.begin(), outcomes.end(), [&](const WhatIfOutcome& b) {
          const double mine = a.seconds_per_sample();
          const double its = b.seconds_per_sample();
          return b.ok() && !b.cuts_more && b.gpus <= a.gpus && its <= mine &&
                 b.peak <= a.peak &&
                 (b.gpus < a.gpus || its < mine || b.peak < a.peak);
        });
  }
  return front;
}

std::map<int64_t, const WhatIfOutcome*> BestByGpus(
    const std::vector<WhatIfCase>& cases,
    const std::vector<WhatIfOutcome>& outcomes) {
  std::map<int64_t, const WhatIfOutcome*> best;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const WhatIfOutcome& o = outcomes[i];
    if (i > 0 && !cases[i].scales) continue;
    if (!o.ok() || o.cuts_more || o.peak > o.limit) continue;
    const WhatIfOutcome*& known = best[o.gpus];
    if (known == nullptr ||
        o.seconds_per_sample() < known->seconds_per_sample()) {
      known = &o;
    }
  }
  return best;
}

}  // namespace pipeloom::studies
