#include "emulator/cluster/emulate_cluster.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"

namespace pipeloom::emulator {
namespace {

// Times of a replica that the rest of the cluster depends on.
struct ReplicaTimes {
  int64_t finish = 0;  // The pipeline's, without epilogues.
  int64_t busy = 0;
  std::vector<int64_t> computed{};  // Before its update. Indexed by rank.
  // For each part of a rank's update: the first task, and the last that adds to
  // gradients. Indexed by rank.
  std::vector<PartSpans> first{};
  std::vector<PartSpans> last{};
};

using Updates = IdVector<RankId, RankUpdate>;
using Slow = std::vector<SlowRank>;

absl::Status WithReplica(const absl::Status& status, size_t replica) {
  return absl::Status(
      status.code(),
      absl::StrCat("replica ", replica, ": ", std::string(status.message())));
}

// Memory reused from replica to replica.
struct Workspace {
  StepProgram program{};
  CompileScratch scratch{};
  StepTimes times{};
  StepEngine engine{};
};

absl::StatusOr<ReplicaTimes> EmulateReplica(const ExecutionPlan& plan,
                                            const Updates& updates,
                                            EmulateOptions options,
                                            const Slow& slow,
                                            Workspace* workspace) {
  for (const SlowRank& s : slow) options.slow_ranks.push_back(s);
  StepProgram& program = workspace->program;
  StepTimes& times = workspace->times;
  StepEngine& engine = workspace->engine;
  PIPELOOM_RETURN_IF_ERROR(
      CompileStep(plan, options, &program, &workspace->scratch));
  TimesOf(program, plan, options, &times);
  const std::vector<int64_t> epilogues = times.epilogues;
  times.epilogues.assign(epilogues.size(), 0);
  engine.Load(program, times);
  PIPELOOM_RETURN_IF_ERROR(engine.Run());
  ReplicaTimes result;
  result.finish = engine.finish();
  for (const int64_t d : times.durations) result.busy += d;
  result.first.resize(static_cast<size_t>(program.num_ranks));
  result.last.resize(static_cast<size_t>(program.num_ranks));
  size_t slot = 0;  // Slots are numbered along the ranks' programs.
  for (int32_t r = 0; r < program.num_ranks; ++r) {
    const RankState& rank = engine.ranks()[static_cast<size_t>(r)];
    result.computed.push_back(rank.epilogue_at >= 0 ? rank.epilogue_at
                                                    : rank.now);
    if (updates.empty()) {
      result.computed.back() += epilogues[static_cast<size_t>(r)];
      continue;
    }
    const std::vector<RankUpdate::Part>& parts = updates[RankId(r)].parts;
    PartSpans& first = result.first[static_cast<size_t>(r)];
    PartSpans& last = result.last[static_cast<size_t>(r)];
    first.resize(parts.size());
    last.resize(parts.size());
    for (; slot < program.task_of_slot.size(); ++slot) {
      const Task& task = plan.graph.task(program.task_of_slot[slot]);
      if (task.rank != RankId(r)) break;
      const PassSpan span = {engine.starts()[slot],
                             engine.starts()[slot] + engine.durations()[slot]};
      for (size_t p = 0; p < parts.size(); ++p) {
        if (parts[p].stage != task.stage) continue;
        if (first[p].begin < 0) first[p] = span;
        if (task.pass != Pass::kForward) last[p] = span;
      }
    }
  }
  return result;
}

// Returns a cheap hash of the plan.
uint64_t Sketch(const ExecutionPlan& plan) {
  uint64_t sum = static_cast<uint64_t>(plan.graph.num_edges());
  for (const Task& task : plan.graph.tasks()) {
    sum = (sum ^ static_cast<uint64_t>(task.duration.count())) *
          0x9e3779b97f4a7c15u;
    sum ^= sum >> 29;
  }
  return sum;
}

bool SameWork(const ExecutionPlan& a, const ExecutionPlan& b) {
  if (&a == &b) return true;
  // The graph's name and the plan's labels do not matter.
  return a.graph.tasks() == b.graph.tasks() &&
         a.graph.edges() == b.graph.edges() &&
         a.graph.ranks() == b.graph.ranks() && a.programs == b.programs &&
         a.links == b.links;
}

// Returns the spans of a rank's parts on each replica.
std::vector<const PartSpans*> SpansOf(
    absl::Span<const ReplicaTimes* const> replicas,
    std::vector<PartSpans> ReplicaTimes::*spans, RankId rank) {
  std::vector<const PartSpans*> of_replica;
  for (const ReplicaTimes* replica : replicas) {
    of_replica.push_back(&(replica->*spans)[static_cast<size_t>(rank.value())]);
  }
  return of_replica;
}

absl::Status CheckArguments(absl::Span<const ExecutionPlan* const> replicas,
                            const Updates& updates,
                            const ClusterOptions& options) {
  if (replicas.empty()) {
    return absl::InvalidArgumentError("a cluster step needs a replica");
  }
  const int32_t num_ranks = replicas[0]->graph.num_ranks();
  for (size_t d = 0; d < replicas.size(); ++d) {
    if (replicas[d]->graph.num_ranks() == num_ranks) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("replica %d has %d ranks; replica 0 has %d", d,
                        replicas[d]->graph.num_ranks(), num_ranks));
  }
  if (!(options.contention >= 0 && options.contention <= 1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "contention is %g; it must be in [0, 1]", options.contention));
  }
  if (options.gpus_per_rank < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "gpus_per_rank is %d; it must be >= 1", options.gpus_per_rank));
  }
  if (!updates.empty() && updates.size() != num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are updates of %d ranks; the plans have %d",
                        updates.size(), num_ranks));
  }
  for (const ClusterOptions::SlowReplicaRank& s : options.slow) {
    if (s.replica < 0 || static_cast<size_t>(s.replica) >= replicas.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("slow: replica %d does not exist; there are %d",
                          s.replica, replicas.size()));
    }
  }
  return absl::OkStatus();
}

// The times of all replicas, each of which stands for those with equal work.
struct EmulatedReplicas {
  std::vector<ReplicaTimes> distinct{};
  std::vector<size_t> class_of{};  // Indexed by replica.
};

// Emulates each replica, or one of those that are alike.
absl::StatusOr<EmulatedReplicas> EmulateReplicas(
    absl::Span<const ExecutionPlan* const> replicas, const Updates& updates,
    const ClusterOptions& options, ClusterCounters* counters) {
  std::vector<Slow> slow(replicas.size());
  for (const ClusterOptions::SlowReplicaRank& s : options.slow) {
    slow[static_cast<size_t>(s.replica)].push_back({s.rank, s.factor});
  }
  EmulatedReplicas result;
  Workspace workspace;
  std::vector<size_t> first_of;  // A replica of each class.
  absl::flat_hash_map<uint64_t, std::vector<size_t>> classes;
  for (size_t d = 0; d < replicas.size(); ++d) {
    const ExecutionPlan& plan = *replicas[d];
    const int64_t peers = options.gpus_per_rank;
    ++counters->replicas;
    counters->gpus += peers * plan.graph.num_ranks();
    counters->tasks += peers * plan.graph.num_tasks();
    std::vector<size_t>* alike =
        options.reuse ? &classes[Sketch(plan)] : nullptr;
    if (alike != nullptr) {
      const auto known =
          std::find_if(alike->begin(), alike->end(), [&](size_t c) {
            return slow[first_of[c]] == slow[d] &&
                   SameWork(*replicas[first_of[c]], plan);
          });
      if (known != alike->end()) {
        result.class_of.push_back(*known);
        continue;
      }
    }
    const int64_t times = options.reuse ? 1 : peers;
    for (int64_t peer = 0; peer < times; ++peer) {
      absl::StatusOr<ReplicaTimes> one =
          EmulateReplica(plan, updates, options.step, slow[d], &workspace);
      if (!one.ok()) return WithReplica(one.status(), d);
      if (peer == 0) result.distinct.push_back(*std::move(one));
    }
    first_of.push_back(d);
    result.class_of.push_back(result.distinct.size() - 1);
    if (alike != nullptr) alike->push_back(result.class_of.back());
    ++counters->replicas_emulated;
    counters->gpus_emulated += times * plan.graph.num_ranks();
    counters->tasks_emulated += times * plan.graph.num_tasks();
  }
  return result;
}

SimTime At(int64_t ns) { return SimTime(Nanoseconds(ns)); }

// When a rank's gradients are reduced, ns, and how long its first forward waits
// for weights.
struct ReducedRank {
  int64_t computed = 0;
  int64_t reduced = 0;
  int64_t wait = 0;
};

ReducedRank ReduceRank(absl::Span<const ReplicaTimes* const> replicas,
                       const Updates& updates, const ClusterOptions& options,
                       RankId rank) {
  ReducedRank result;
  for (const ReplicaTimes* times : replicas) {
    result.computed = std::max(
        result.computed, times->computed[static_cast<size_t>(rank.value())]);
  }
  result.reduced = result.computed;
  if (updates.empty()) return result;
  const RankUpdate& update = updates[rank];
  if (!options.overlap_reduction || update.parts.empty()) {
    result.reduced += update.reduce.count();
  } else if (update.reduce > kZero) {
    result.reduced =
        ReducedAt(update, SpansOf(replicas, &ReplicaTimes::last, rank));
  }
  int64_t hidden = update.reduce.count() -
                   std::max<int64_t>(0, result.reduced - result.computed);
  if (options.gather_in_forwards) {
    result.wait =
        WaitForWeights(update, SpansOf(replicas, &ReplicaTimes::first, rank));
    hidden += std::max<int64_t>(0, update.gather.count() - result.wait);
  }
  // The rank's passes took so much longer.
  const int64_t lost =
      std::llround(options.contention * static_cast<double>(hidden));
  if (lost > 0) {
    result.reduced = std::max(result.reduced, result.computed) + lost;
  }
  return result;
}

}  // namespace

int32_t ClusterStep::slowest_replica() const {
  return static_cast<int32_t>(
      std::max_element(pipeline_finish.begin(), pipeline_finish.end()) -
      pipeline_finish.begin());
}

Duration ClusterStep::tail() const {
  return finish -
         *std::max_element(pipeline_finish.begin(), pipeline_finish.end());
}

absl::StatusOr<ClusterResult> EmulateCluster(
    absl::Span<const ExecutionPlan* const> replicas,
    const IdVector<RankId, RankUpdate>& updates,
    const ClusterOptions& options) {
  PIPELOOM_RETURN_IF_ERROR(CheckArguments(replicas, updates, options));
  ClusterResult result;
  PIPELOOM_ASSIGN_OR_RETURN(
      const EmulatedReplicas emulated,
      EmulateReplicas(replicas, updates, options, &result.counters));
  ClusterStep& step = result.step;
  for (const size_t c : emulated.class_of) {
    const ReplicaTimes& times = emulated.distinct[c];
    step.pipeline_finish.push_back(At(times.finish));
    step.busy += Nanoseconds(times.busy);
    step.finish = std::max(step.finish, At(times.finish));
  }
  std::vector<const ReplicaTimes*> distinct;
  for (const ReplicaTimes& times : emulated.distinct) {
    distinct.push_back(&times);
  }
  int64_t wait = 0;
  int64_t norm = 0;  // When all ranks' gradients are reduced.
  for (int32_t r = 0; r < replicas[0]->graph.num_ranks(); ++r) {
    const ReducedRank rank = ReduceRank(distinct, updates, options, RankId(r));
    step.ranks.push_back(
        {.computed = At(rank.computed), .reduced = At(rank.reduced)});
    wait = std::max(wait, rank.wait);
    norm = std::max(norm, rank.reduced);
  }
  for (const RankId r : step.ranks.ids()) {
    ClusterStep::Rank& rank = step.ranks[r];
    rank.updated = std::max(rank.computed, rank.reduced);
    rank.gathered = rank.updated;
    if (!updates.empty()) {
      const RankUpdate& update = updates[r];
      if (options.clip_gradients && update.total() > kZero) {
        rank.updated = std::max(rank.updated, At(norm));
      }
      rank.updated += update.optimizer;
      rank.gathered =
          rank.updated + (options.gather_in_forwards ? kZero : update.gather);
    }
    step.finish = std::max(step.finish, rank.gathered);
  }
  step.finish += Nanoseconds(wait);
  return result;
}

}  // namespace pipeloom::emulator
