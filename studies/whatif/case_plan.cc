#include "studies/whatif/case_plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "emulator/cost/shared_costs.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/plan_bound.h"
#include "planner/core/executor.h"
#include "planner/lower/lower_plan.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "studies/job/device_prices.h"
#include "studies/job/planner_input.h"

namespace pipeloom::studies {
namespace {

// Returns `result` with another plan of its step and the trace of that.
planner::PlanResult With(ExecutionPlan plan, StepTrace trace,
                         const planner::PlanResult& result) {
  planner::PlanResult changed = result;
  changed.plan.graph = std::move(plan.graph);
  changed.plan.programs = std::move(plan.programs);
  changed.predicted = std::move(trace);
  const planner::NamedBound bound = planner::PlanBound(
      emulator::WithLeastEpilogues(changed.plan.graph, *result.update),
      /*memory=*/nullptr);
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
  PIPELOOM_ASSIGN_OR_RETURN(
      StepTrace trace, emulator::EmulateInOrder(*result.update, {}, &plan));
  if (!what.replan) return With(std::move(plan), std::move(trace), result);
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::SearchResult found,
      prepared.strategy->MakeSchedule(slower, prepared.partition, settings.seed,
                                      StartBudget(settings, context.stop)));
  PIPELOOM_ASSIGN_OR_RETURN(ExecutionPlan anew,
                            planner::LowerPlan(slower, found.schedule));
  anew.links = result.plan.links;
  PIPELOOM_ASSIGN_OR_RETURN(
      StepTrace other, emulator::EmulateInOrder(*result.update, {}, &anew));
  // The search does not see buffers of received tensors, so its order is used
  // only if these fit, too.
  bool fits = ValidateSchedule(slower, found.schedule).ok();
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
  plan.links = result.plan.links;
  PIPELOOM_ASSIGN_OR_RETURN(StepTrace trace,
                            emulator::EmulateInOrder(*built.update, {}, &plan));
  return With(std::move(plan), std::move(trace), result);
}

// Returns the job of a case, with its batch and profile.
absl::StatusOr<JobInput> JobOf(const WhatIfInput& input,
                               const WhatIfCase& what) {
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
  job.profiles = input.base.profiles;
  PIPELOOM_RETURN_IF_ERROR(FindProfiles(&job));
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
  return job;
}

// Makes the planner of a case's job, on `on` or, if that is null, on the
// partition of its own choice.
absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const WhatIfInput& input, const JobInput& job, const Partition* on,
    const StudyContext& quiet) {
  std::optional<Partition> partition;
  if (on != nullptr) {
    partition = *on;
  } else if (input.partition.make) {
    PIPELOOM_ASSIGN_OR_RETURN(partition, input.partition.make(job));
  }
  return MakeJobPlanner(job, input.schedule, input.prices.Of(job),
                        /*correct=*/{}, std::move(partition), quiet.stop);
}

// A case planned on one partition.
struct CaseRun {
  WhatIfOutcome outcome{};
  Partition partition{};
  std::vector<PlannedStep> steps{};
};

absl::StatusOr<CaseRun> Run(const WhatIfInput& input, const WhatIfCase& what,
                            const Partition* on, const StudyContext& quiet) {
  PIPELOOM_ASSIGN_OR_RETURN(const JobInput job, JobOf(input, what));
  PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                            PackSteps(job, input.steps, quiet));
  PIPELOOM_ASSIGN_OR_RETURN(const auto planner,
                            PlannerOf(input, job, on, quiet));
  const planner::PreparedJob& prepared = planner->prepared();
  SearchSettings settings = Settle(input.search, job.job.search);
  settings.threads = 1;
  settings.defer = input.base.defer;
  if (prepared.partition == input.start.partition) {
    settings.warm_up = input.start.lessons;
  }
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
      const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(replica.predicted);
      for (const RankId r : peaks.ids()) {
        const Bytes limit = replica.plan.graph.rank(r).memory.limit;
        // Ranks of other devices have other limits.
        if (outcome.limit == Bytes(0) ||
            limit - peaks[r].total < outcome.limit - outcome.peak) {
          outcome.peak = peaks[r].total;
          outcome.limit = limit;
        }
      }
    }
  }
  outcome.lower_bound = bound / static_cast<int64_t>(steps.size());
  outcome.bubble_ratio = means.bubble_ratio;
  outcome.epilogue_ratio = means.epilogue_ratio;
  outcome.mfu = means.mfu;
  outcome.gpus = job.job.parallel.num_gpus();
  outcome.samples /= static_cast<int64_t>(steps.size());
  return CaseRun{std::move(outcome), prepared.partition, std::move(steps)};
}

StudyContext Quiet(const StudyContext& context) {
  StudyContext quiet;
  quiet.read = context.read;
  quiet.stop = context.stop;
  return quiet;
}

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

absl::StatusOr<WhatIfStart> PlanStart(const WhatIfInput& input,
                                      const std::vector<WhatIfCase>& cases,
                                      int32_t threads,
                                      const StudyContext& context) {
  constexpr size_t kMostOthers = 4;
  const StudyContext quiet = Quiet(context);
  std::vector<std::optional<Partition>> own(cases.size());
  // A search takes too long to be made twice for each case.
  const size_t asked = input.partition.make ? 1 : cases.size();
  const ProgressCallback progress =
      context.StartProgress("choosing partitions", static_cast<int64_t>(asked));
  std::atomic<int64_t> done{0};
  progress(0, "");
  planner::ParallelFor(threads, static_cast<int32_t>(asked), [&](int32_t i) {
    const auto at = static_cast<size_t>(i);
    const absl::StatusOr<JobInput> job = JobOf(input, cases[at]);
    // Partitions of other models and numbers of ranks are no help.
    if (!job.ok() || quiet.stop.stop_requested() ||
        job->job.model.name != input.base.job.model.name ||
        job->job.parallel.pp != input.base.job.parallel.pp) {
      return;
    }
    const auto planner = PlannerOf(input, *job, /*on=*/nullptr, quiet);
    if (planner.ok()) own[at] = (*planner)->partition();
  });
  // With the number of cases that choose it.
  std::vector<std::pair<int, Partition>> chosen;
  for (const std::optional<Partition>& partition : own) {
    if (!partition.has_value()) continue;
    const auto known =
        std::find_if(chosen.begin(), chosen.end(),
                     [&](const auto& c) { return c.second == *partition; });
    if (known == chosen.end()) {
      chosen.emplace_back(1, *partition);
    } else {
      ++known->first;
    }
  }
  if (chosen.empty()) return WhatIfStart();
  std::stable_sort(
      chosen.begin() + (own.front().has_value() ? 1 : 0), chosen.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  if (chosen.size() > 1 + kMostOthers) chosen.resize(1 + kMostOthers);
  std::vector<absl::StatusOr<CaseRun>> runs(chosen.size(), CaseRun());
  planner::ParallelFor(
      threads, static_cast<int32_t>(runs.size()), [&](int32_t i) {
        const auto at = static_cast<size_t>(i);
        runs[at] = Run(input, cases.front(), &chosen[at].second, quiet);
      });
  if (context.stop.stop_requested()) return absl::CancelledError("stopped");
  const CaseRun* best = nullptr;
  for (const absl::StatusOr<CaseRun>& run : runs) {
    if (run.ok() &&
        (best == nullptr || run->outcome.step_time < best->outcome.step_time)) {
      best = &*run;
    }
  }
  WhatIfStart start;
  if (best == nullptr) return start;
  start.partition = best->partition;
  for (const PlannedStep& step : best->steps) {
    for (const planner::PlanResult& replica : step.replicas) {
      if (replica.carried != nullptr) start.lessons.push_back(replica.carried);
    }
  }
  return start;
}

void WarnOfPrices(const WhatIfInput& input,
                  const std::vector<WhatIfCase>& cases,
                  const StudyContext& context) {
  if (input.costs != "profile") return;
  std::set<std::string> seen;
  const auto look = [&](const ClusterSpec& cluster, bool is_base) {
    std::vector<const DeviceSpec*> devices = {&cluster.device};
    for (const NodeGroup& group : cluster.node_groups) {
      devices.push_back(&group.device);
    }
    for (const DeviceSpec* device : devices) {
      if (!seen.insert(device->name).second || is_base) continue;
      const auto profile = input.base.profiles.Find(device->name);
      // Cases with a profile that cannot be read say so themselves.
      if (!profile.ok() ||
          (*profile != nullptr && (*profile)->device == device->name)) {
        continue;
      }
      context.Warn(PriceNote(*device, profile->get()));
    }
  };
  look(input.base.job.cluster, /*is_base=*/true);
  for (const WhatIfCase& what : cases) {
    const bool changes_cluster =
        absl::c_any_of(what.changes, [](const formats::JobOverride& change) {
          return absl::StartsWith(change.path, "cluster");
        });
    if (!changes_cluster) continue;
    const absl::StatusOr<JobSpec> job = input.job.With(what.changes);
    if (job.ok()) look(job->cluster, /*is_base=*/false);
  }
}

absl::StatusOr<WhatIfOutcome> RunCase(const WhatIfInput& input,
                                      const WhatIfCase& what,
                                      const StudyContext& context,
                                      PlannedStep* planned) {
  const StudyContext quiet = Quiet(context);
  absl::StatusOr<CaseRun> run = Run(input, what, /*on=*/nullptr, quiet);
  if (!input.start.lessons.empty() &&
      !(run.ok() && run->partition == input.start.partition)) {
    absl::StatusOr<CaseRun> other =
        Run(input, what, &input.start.partition, quiet);
    if (other.ok() && (!run.ok() || other->outcome.seconds_per_sample() <
                                        run->outcome.seconds_per_sample())) {
      run = std::move(other);
    }
  }
  if (run.ok()) {
    if (planned != nullptr) *planned = std::move(run->steps[0]);
    return std::move(run->outcome);
  }
  if (context.stop.stop_requested()) return absl::CancelledError("stopped");
  WhatIfOutcome failed;
  failed.error = std::string(run.status().message());
  if (failed.error.empty()) failed.error = "unknown";
  return failed;
}

}  // namespace pipeloom::studies
