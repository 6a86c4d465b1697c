#include "emulator/cluster/emulate_cluster.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
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
  // The last task that adds to the gradients of each part of a rank's update.
  // Indexed by rank and part.
  struct LastTask {
    int64_t start = -1;
    int64_t end = -1;
  };
  std::vector<std::vector<LastTask>> parts{};
  // Start of the first task of each part; -1: it has none.
  std::vector<std::vector<int64_t>> begins{};
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
  result.parts.resize(static_cast<size_t>(program.num_ranks));
  result.begins.resize(static_cast<size_t>(program.num_ranks));
  for (int32_t r = 0; r < program.num_ranks; ++r) {
    const RankState& rank = engine.ranks()[static_cast<size_t>(r)];
    result.computed.push_back(rank.epilogue_at >= 0 ? rank.epilogue_at
                                                    : rank.now);
    if (updates.empty()) {
      result.computed.back() += epilogues[static_cast<size_t>(r)];
      continue;
    }
    const std::vector<RankUpdate::Part>& parts = updates[RankId(r)].parts;
    auto& last = result.parts[static_cast<size_t>(r)];
    last.resize(parts.size());
    // Backwards along the program, until each part is found.
    size_t missing = parts.size();
    const absl::Span<const StepOp> ops = program.ops_of(r);
    for (size_t k = ops.size(); k-- > 0 && missing > 0;) {
      uint32_t slot = ops[k].index;
      if (ops[k].code == OpCode::kComputeGuarded) {
        slot = program.guards[slot].slot;
      } else if (ops[k].code != OpCode::kCompute) {
        continue;
      }
      const Task& task = plan.graph.task(program.task_of_slot[slot]);
      if (task.pass == Pass::kForward) continue;
      for (size_t p = 0; p < parts.size(); ++p) {
        if (parts[p].stage != task.stage || last[p].start >= 0) continue;
        last[p] = {engine.starts()[slot],
                   engine.starts()[slot] + engine.durations()[slot]};
        --missing;
      }
    }
    auto& begins = result.begins[static_cast<size_t>(r)];
    begins.assign(parts.size(), -1);
    for (const StepOp& op : ops) {
      if (op.code != OpCode::kCompute && op.code != OpCode::kComputeGuarded) {
        continue;
      }
      const uint32_t slot = op.code == OpCode::kCompute
                                ? op.index
                                : program.guards[op.index].slot;
      const Task& task = plan.graph.task(program.task_of_slot[slot]);
      for (size_t p = 0; p < parts.size(); ++p) {
        if (parts[p].stage == task.stage && begins[p] < 0) {
          begins[p] = engine.starts()[slot];
        }
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
         a.graph.ranks() == b.graph.ranks() && a.programs == b.programs;
}

// Returns when the reductions of a rank end, which run one after another as
// they become ready in all replicas.
int64_t Reduced(const RankUpdate& update, size_t rank,
                absl::Span<const ReplicaTimes* const> replicas,
                const ClusterOptions& options, int64_t computed) {
  const int64_t reduce = update.reduce.count();
  if (reduce == 0) return computed;
  if (!options.overlap_reduction || update.parts.empty()) {
    return computed + reduce;
  }
  int64_t parameters = 0;
  for (const RankUpdate::Part& part : update.parts) {
    parameters += part.parameters;
  }
  struct Bucket {
    int64_t ready = 0;
    double weight = 0;
  };
  std::vector<Bucket> buckets;
  const int64_t count = options.buckets_per_stage;
  for (size_t p = 0; p < update.parts.size(); ++p) {
    for (int64_t k = 1; k <= count; ++k) {
      Bucket bucket{.weight = static_cast<double>(update.parts[p].parameters) /
                              static_cast<double>(parameters) /
                              static_cast<double>(count)};
      for (const ReplicaTimes* replica : replicas) {
        const ReplicaTimes::LastTask& last = replica->parts[rank][p];
        // A replica without work for the stage has nothing to add.
        if (last.start < 0) continue;
        bucket.ready = std::max(
            bucket.ready, last.start + (last.end - last.start) * k / count);
      }
      buckets.push_back(bucket);
    }
  }
  std::stable_sort(
      buckets.begin(), buckets.end(),
      [](const Bucket& a, const Bucket& b) { return a.ready < b.ready; });
  int64_t free = 0;
  int64_t done = 0;
  double share = 0;
  for (size_t k = 0; k < buckets.size(); ++k) {
    share += buckets[k].weight;
    const int64_t until =
        k + 1 == buckets.size()
            ? reduce
            : static_cast<int64_t>(static_cast<double>(reduce) * share);
    free = std::max(free, buckets[k].ready) + (until - done);
    done = until;
  }
  return free;
}

// Returns how long the forwards of a rank wait for their weights, which are
// gathered one stage after another.
int64_t WaitForWeights(const RankUpdate& update, size_t rank,
                       absl::Span<const ReplicaTimes* const> replicas) {
  int64_t parameters = 0;
  for (const RankUpdate::Part& part : update.parts) {
    parameters += part.parameters;
  }
  std::vector<std::pair<int64_t, int64_t>> needed;  // When, parameters.
  for (size_t p = 0; p < update.parts.size(); ++p) {
    int64_t begin = -1;
    for (const ReplicaTimes* replica : replicas) {
      const int64_t own = replica->begins[rank][p];
      if (own >= 0) begin = begin < 0 ? own : std::min(begin, own);
    }
    if (begin >= 0) needed.emplace_back(begin, update.parts[p].parameters);
  }
  std::sort(needed.begin(), needed.end());
  int64_t wait = 0;
  int64_t gathered = 0;
  for (const auto& [begin, count] : needed) {
    gathered += count;
    const auto until = static_cast<int64_t>(
        static_cast<double>(update.whole_gather.count()) *
        static_cast<double>(gathered) / static_cast<double>(parameters));
    wait = std::max(wait, until - begin);
  }
  return wait;
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
  if (replicas.empty()) {
    return absl::InvalidArgumentError("a cluster step needs a replica");
  }
  const int32_t num_ranks = replicas[0]->graph.num_ranks();
  if (options.buckets_per_stage < 1 || options.buckets_per_stage > 1024) {
    return absl::InvalidArgumentError(
        absl::StrFormat("buckets_per_stage is %d; it must be in [1, 1024]",
                        options.buckets_per_stage));
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
  std::vector<Slow> slow(replicas.size());
  for (const ClusterOptions::SlowReplicaRank& s : options.slow) {
    if (s.replica < 0 || static_cast<size_t>(s.replica) >= replicas.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("slow: replica %d does not exist; there are %d",
                          s.replica, replicas.size()));
    }
    slow[static_cast<size_t>(s.replica)].push_back({s.rank, s.factor});
  }

  ClusterResult result;
  ClusterCounters& counters = result.counters;
  Workspace workspace;
  std::vector<ReplicaTimes> emulated;
  std::vector<size_t> class_of(replicas.size());
  std::vector<size_t> first_of;  // A replica of each class.
  absl::flat_hash_map<uint64_t, std::vector<size_t>> classes;
  for (size_t d = 0; d < replicas.size(); ++d) {
    const ExecutionPlan& plan = *replicas[d];
    if (plan.graph.num_ranks() != num_ranks) {
      return absl::InvalidArgumentError(
          absl::StrFormat("replica %d has %d ranks; replica 0 has %d", d,
                          plan.graph.num_ranks(), num_ranks));
    }
    ++counters.replicas;
    const int64_t peers = options.gpus_per_rank;
    counters.gpus += peers * num_ranks;
    counters.tasks += peers * plan.graph.num_tasks();
    std::optional<size_t> known;
    std::vector<size_t>* alike = nullptr;
    if (options.reuse) {
      alike = &classes[Sketch(plan)];
      for (const size_t c : *alike) {
        if (slow[first_of[c]] == slow[d] &&
            SameWork(*replicas[first_of[c]], plan)) {
          known = c;
          break;
        }
      }
    }
    if (!known.has_value()) {
      known = emulated.size();
      const int64_t times = options.reuse ? 1 : peers;
      for (int64_t peer = 0; peer < times; ++peer) {
        absl::StatusOr<ReplicaTimes> one =
            EmulateReplica(plan, updates, options.step, slow[d], &workspace);
        if (!one.ok()) return WithReplica(one.status(), d);
        if (peer == 0) emulated.push_back(*std::move(one));
      }
      first_of.push_back(d);
      if (alike != nullptr) alike->push_back(*known);
      ++counters.replicas_emulated;
      counters.gpus_emulated += times * num_ranks;
      counters.tasks_emulated += times * plan.graph.num_tasks();
    }
    class_of[d] = *known;
  }

  ClusterStep& step = result.step;
  const auto at = [](int64_t ns) { return SimTime(Nanoseconds(ns)); };
  std::vector<const ReplicaTimes*> distinct;
  for (const ReplicaTimes& times : emulated) distinct.push_back(&times);
  for (const size_t c : class_of) {
    step.pipeline_finish.push_back(at(emulated[c].finish));
    step.busy += Nanoseconds(emulated[c].busy);
    step.finish = std::max(step.finish, at(emulated[c].finish));
  }
  std::vector<int64_t> reduced;
  for (int32_t r = 0; r < num_ranks; ++r) {
    const auto i = static_cast<size_t>(r);
    int64_t computed = 0;
    for (const ReplicaTimes* times : distinct) {
      computed = std::max(computed, times->computed[i]);
    }
    step.ranks.push_back({.computed = at(computed)});
    reduced.push_back(updates.empty() ? computed
                                      : Reduced(updates[RankId(r)], i, distinct,
                                                options, computed));
  }
  const int64_t norm =
      reduced.empty() ? 0 : *std::max_element(reduced.begin(), reduced.end());
  for (const RankId r : step.ranks.ids()) {
    ClusterStep::Rank& rank = step.ranks[r];
    rank.reduced = at(reduced[static_cast<size_t>(r.value())]);
    rank.updated = std::max(rank.computed, rank.reduced);
    rank.gathered = rank.updated;
    if (!updates.empty()) {
      const RankUpdate& update = updates[r];
      if (options.clip_gradients && update.total() > kZero) {
        rank.updated = std::max(rank.updated, at(norm));
      }
      rank.updated += update.optimizer;
      rank.gathered =
          rank.updated + (options.gather_in_forwards ? kZero : update.gather);
    }
    step.finish = std::max(step.finish, rank.gathered);
  }
  int64_t wait = 0;
  double hidden = 0;
  for (const RankId r : updates.ids()) {
    const RankUpdate& update = updates[r];
    const ClusterStep::Rank& rank = step.ranks[r];
    Duration behind =
        update.reduce - std::max(kZero, rank.reduced - rank.computed);
    if (options.gather_in_forwards) {
      const int64_t own =
          WaitForWeights(update, static_cast<size_t>(r.value()), distinct);
      wait = std::max(wait, own);
      behind += std::max(kZero, update.whole_gather - Nanoseconds(own));
    }
    hidden = std::max(hidden, static_cast<double>(behind.count()));
  }
  step.finish = step.finish + Nanoseconds(wait) +
                Nanoseconds(std::llround(options.contention * hidden));
  return result;
}

}  // namespace pipeloom::emulator
