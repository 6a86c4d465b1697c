#include "studies/whatif/suggestions.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/step/emulate_step.h"
#include "partition/placement/recipe.h"
#include "studies/whatif/bucket_choice.h"

namespace pipeloom::studies {
namespace {

// Gains of less than one part in this many of the step are left out.
constexpr int64_t kLeastGain = 1000;

void KeepBest(size_t most, std::vector<Suggestion>* found) {
  std::erase_if(*found, [](const Suggestion& s) {
    return s.gain <= kZero || s.gain * kLeastGain < s.step_time + s.gain;
  });
  std::stable_sort(
      found->begin(), found->end(),
      [](const Suggestion& a, const Suggestion& b) { return a.gain > b.gain; });
  if (found->size() > most) found->resize(most);
}

}  // namespace

CasePartition OnPartition(const Partition& partition, const JobSpec& job) {
  return {.name = "given",
          .make = [partition, model = job.model.name, pp = job.parallel.pp](
                      const JobInput& input) -> absl::StatusOr<Partition> {
            if (input.job.model.name != model || input.job.parallel.pp != pp) {
              return absl::FailedPreconditionError(
                  "the partition is of another pipeline");
            }
            PIPELOOM_RETURN_IF_ERROR(
                partition::CheckPartitionRules(input.job, partition));
            return partition;
          }};
}

absl::StatusOr<std::vector<Suggestion>> SuggestForJob(
    const WhatIfInput& input, const std::vector<formats::JobOverride>& base,
    const WhatIfOutcome& now, const Partition* given, size_t most,
    int32_t threads, const StudyContext& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const JobSpec job, input.job.With(base));
  std::vector<WhatIfCase> cases;
  std::vector<std::string> kinds;
  const auto add = [&](const std::string& kind, WhatIfCase c) {
    // Only changes that make another job can be applied.
    if (c.changes.empty() || c.slow_rank >= 0 || c.recompute_all) return;
    // A setting of `base` is left out if the case replaces its value.
    std::vector<formats::JobOverride> changes;
    for (const formats::JobOverride& set : base) {
      if (std::none_of(c.changes.begin(), c.changes.end(), [&](const auto& o) {
            return o.path == set.path && !absl::StartsWith(o.value, "*");
          })) {
        changes.push_back(set);
      }
    }
    changes.insert(changes.end(), c.changes.begin(), c.changes.end());
    c.changes = std::move(changes);
    cases.push_back(std::move(c));
    kinds.push_back(kind);
  };
  for (const char* question :
       {"layout", "microbatches", "network", "memory", "recompute"}) {
    for (const WhatIfCase& c : CasesOf(question, job)) add(question, c);
  }
  if (job.setup.host_per_kernel > kZero &&
      job.setup.graphs == CudaGraphs::kNone) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<BucketChoice> buckets,
                              BucketChoices(input, base, context));
    for (const WhatIfCase& c : CasesOf("graphs", job, {.buckets = buckets})) {
      add("launches", c);
    }
  }
  for (const ModuleSpec& module : job.model.modules) {
    if (module.role == ModuleRole::kBackbone) continue;
    for (const int64_t instances : {2, 4, 8, 16, 32}) {
      WhatIfCase c;
      c.label = absl::StrFormat("sub-microbatches of %d for %s", instances,
                                module.name);
      c.changes = {{"training.sub_microbatch_sizes",
                    absl::StrFormat("[{\"module\":\"%s\",\"instances\":%d}]",
                                    module.name, instances)}};
      add("sub-microbatches", c);
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<WhatIfOutcome> outcomes,
                            RunCases(input, cases, threads, "", context));
  std::vector<WhatIfOutcome> on_given;
  if (given != nullptr) {
    WhatIfInput there = input;
    there.partition = OnPartition(*given, job);
    PIPELOOM_ASSIGN_OR_RETURN(on_given,
                              RunCases(there, cases, threads, "", context));
  }
  // The best change of each kind, among those with the same number of samples,
  // as whole as in the job.
  std::map<std::string, Suggestion> best;
  const auto consider = [&](size_t i, const WhatIfOutcome& o, bool is_given) {
    if (!o.ok() || o.peak > o.limit) return;
    if (o.samples != now.samples || o.cuts_more) return;
    Suggestion& known = best[kinds[i]];
    const Duration gain = now.step_time - o.step_time;
    if (gain <= known.gain) return;
    known = {cases[i].label, o.step_time, gain, cases[i], is_given};
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    consider(i, outcomes[i], /*is_given=*/false);
    if (given != nullptr) consider(i, on_given[i], /*is_given=*/true);
  }
  std::vector<Suggestion> found;
  for (auto& [kind, suggestion] : best) found.push_back(std::move(suggestion));
  KeepBest(most, &found);
  return found;
}

absl::StatusOr<std::vector<Suggestion>> SuggestForPlan(
    const ExecutionPlan& plan, size_t most) {
  PIPELOOM_ASSIGN_OR_RETURN(const StepTrace now,
                            emulator::EmulateStep(plan, {.full_trace = false}));
  const StageGraph& graph = plan.graph;
  std::vector<Suggestion> found;
  const auto try_change =
      [&](std::string label,
          const std::function<void(
              IdVector<RankId, RankSpec>&, IdVector<TaskId, Task>&,
              IdVector<EdgeId, Dependency>&)>& change) -> absl::Status {
    IdVector<RankId, RankSpec> ranks = graph.ranks();
    IdVector<TaskId, Task> tasks = graph.tasks();
    IdVector<EdgeId, Dependency> edges = graph.edges();
    change(ranks, tasks, edges);
    ExecutionPlan changed = plan;
    PIPELOOM_ASSIGN_OR_RETURN(
        changed.graph,
        StageGraph::Create(graph.name(), std::move(ranks), graph.module_names(),
                           std::move(tasks), std::move(edges)));
    PIPELOOM_ASSIGN_OR_RETURN(
        const StepTrace trace,
        emulator::EmulateStep(changed, {.full_trace = false}));
    found.push_back({std::move(label),
                     trace.step_time(),
                     now.step_time() - trace.step_time(),
                     {},
                     false});
    return absl::OkStatus();
  };
  const auto tenth_less = [](Task& task) {
    task.duration -= task.duration / 10;
  };
  PIPELOOM_RETURN_IF_ERROR(
      try_change("links of twice the speed", [&](auto&, auto&, auto& edges) {
        for (Dependency& d : edges) {
          if (graph.task(d.from).rank == graph.task(d.to).rank) continue;
          d.delay /= 2;
          d.occupancy /= 2;
        }
      }));
  PIPELOOM_RETURN_IF_ERROR(
      try_change("gradient reduction and optimizer step hidden",
                 [](auto& ranks, auto&, auto&) {
                   for (RankSpec& rank : ranks) rank.epilogue = kZero;
                 }));
  for (size_t m = 0; m < graph.module_names().size(); ++m) {
    PIPELOOM_RETURN_IF_ERROR(
        try_change(absl::StrCat(graph.module_names()[m], " a tenth faster"),
                   [&](auto&, auto& tasks, auto&) {
                     for (Task& task : tasks) {
                       if (task.module.value() == static_cast<int32_t>(m)) {
                         tenth_less(task);
                       }
                     }
                   }));
  }
  RankId busiest(0);
  Duration most_busy{-1};
  for (const RankId r : graph.rank_ids()) {
    Duration busy{};
    for (const TaskId t : graph.tasks_of(r)) busy += graph.task(t).duration;
    if (busy > most_busy) {
      most_busy = busy;
      busiest = r;
    }
  }
  PIPELOOM_RETURN_IF_ERROR(
      try_change(absl::StrFormat("a tenth less work on rank %d, the busiest",
                                 busiest.value()),
                 [&](auto&, auto& tasks, auto&) {
                   for (Task& task : tasks) {
                     if (task.rank == busiest) tenth_less(task);
                   }
                 }));
  KeepBest(most, &found);
  return found;
}

}  // namespace pipeloom::studies
