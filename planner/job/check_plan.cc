#include "planner/job/check_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "emulator/stage/pass_pair.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/pass_pairs.h"
#include "partition/batching/loss_shares.h"
#include "partition/batching/shape_buckets.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/lower/kept_links.h"
#include "planner/trainer/trainer_plan.h"
#include "planner/trainer/trainer_strategy.h"

namespace pipeloom::planner {
namespace {

using emulator::PairablePass;
using Key = std::tuple<Pass, StageId, MicrobatchId, int32_t>;

// Two sums of the same times over layers may differ by this share, and this.
constexpr double kTolerance = 1e-3;
constexpr Duration kRounding(1000);

constexpr char kOtherPartition[] =
    "the plan is of another partition: give the one that it was made with by "
    "--partition";

Key KeyOf(const Task& task) {
  return {task.pass, task.stage, task.microbatch, task.sub_microbatch};
}

absl::Status Fail(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("plan, by its job and batch: ", what));
}

// The job's graph of the step, by passes.
class JobGraph {
 public:
  explicit JobGraph(const StageGraph& graph) : graph_(graph) {
    for (const TaskId t : graph.task_ids()) {
      tasks_[KeyOf(graph.task(t))] = t;
    }
    for (const EdgeId e : graph.edge_ids()) {
      edges_[{graph.edge(e).from, graph.edge(e).to}] = e;
    }
  }

  const StageGraph& graph() const { return graph_; }
  // Return the pass or the edge; none if there is none.
  TaskId Find(const Key& key) const {
    const auto it = tasks_.find(key);
    return it == tasks_.end() ? TaskId() : it->second;
  }
  EdgeId Find(TaskId from, TaskId to) const {
    const auto it = edges_.find({from, to});
    return it == edges_.end() ? EdgeId() : it->second;
  }

 private:
  const StageGraph& graph_;
  std::map<Key, TaskId> tasks_{};
  std::map<std::pair<TaskId, TaskId>, EdgeId> edges_{};
};

// The passes that a trainer can run together, without their times, in both
// forms; equal for forwards.
struct Pairable {
  bool allowed = false;  // Whether the job's trainer runs pairs.
  std::map<Key, PairablePass> split{};
  std::map<Key, PairablePass> fused{};
};

Pairable PassesOf(const JobSpec& job, const partition::BuiltGraph& split,
                  const partition::StepMemory& memory) {
  Pairable passes{.allowed = job.setup.paired_forwards};
  if (!passes.allowed) return passes;
  for (const StagePairId id : split.pairs.ids()) {
    const partition::StagePair& pair = split.pairs[id];
    if (pair.backward.is_none()) continue;
    const auto add = [&](const partition::MemoryEffect& effect,
                         std::map<Key, PairablePass>* to) {
      (*to)[KeyOf(split.graph.task(pair.forward))] = {
          .gap = effect.forward_gap, .compute = effect.forward_compute};
      (*to)[KeyOf(split.graph.task(pair.backward))] = {
          .gap = effect.gap, .compute = effect.compute};
    };
    add(memory.effect(id, 0), &passes.split);
    add(memory.has_other_form(id) ? memory.effect_in_other_form(id, 0)
                                  : memory.effect(id, 0),
        &passes.fused);
  }
  return passes;
}

class PlanCheck {
 public:
  // `fused` and `split` are the job's graphs with either form of backwards, and
  // `passes` belongs to `split`. `epilogues` follow from the plan's order; they
  // are empty if its ranks are not the job's.
  PlanCheck(const ExecutionPlan& plan, const StageGraph& fused,
            const StageGraph& split, const Pairable& passes,
            IdVector<RankId, Duration> epilogues)
      : graph_(plan.graph),
        epilogues_(std::move(epilogues)),
        own_(plan.graph),
        fused_(fused),
        split_(split),
        passes_(passes),
        seconds_(SecondsOfPairs(plan.graph)) {}

  absl::Status Run() const {
    PIPELOOM_RETURN_IF_ERROR(CheckRanks());
    PIPELOOM_RETURN_IF_ERROR(CheckTasks());
    PIPELOOM_RETURN_IF_ERROR(CheckEdges());
    return CheckEpilogues();
  }

 private:
  absl::Status CheckRanks() const {
    const StageGraph& job = fused_.graph();
    if (graph_.num_ranks() != job.num_ranks()) {
      return Fail(absl::StrFormat("it has %d ranks; %d are right",
                                  graph_.num_ranks(), job.num_ranks()));
    }
    if (graph_.module_names() != job.module_names()) {
      return Fail("its modules have other names or another order than those");
    }
    PIPELOOM_RETURN_IF_ERROR(CheckStages());
    for (const RankId r : graph_.rank_ids()) {
      const RankSpec& own = graph_.rank(r);
      const RankSpec& right = job.rank(r);
      const std::pair<const char*, std::pair<int64_t, int64_t>> fields[] = {
          {"limit", {own.memory.limit.count(), right.memory.limit.count()}},
          {"weights",
           {own.memory.weights.count(), right.memory.weights.count()}},
          {"gradients",
           {own.memory.gradients.count(), right.memory.gradients.count()}},
          {"optimizer",
           {own.memory.optimizer.count(), right.memory.optimizer.count()}},
          {"overhead",
           {own.memory.overhead.count(), right.memory.overhead.count()}}};
      for (const auto& [name, values] : fields) {
        if (values.first == values.second) continue;
        const std::string differs =
            absl::StrFormat("rank %d: %s is %d; %d is right", r.value(), name,
                            values.first, values.second);
        if (SameWeights(graph_, job) && PlacesOf(graph_) == PlacesOf(job)) {
          return Fail(differs);
        }
        return Fail(absl::StrCat(
            differs, "; ",
            WeightsOf(graph_) == WeightsOf(job)
                ? absl::StrCat("all ranks together hold as much as they should,"
                               " so ",
                               kOtherPartition)
                : "the partition (--partition) or other options of the job "
                  "are not those of the plan"));
      }
    }
    return absl::OkStatus();
  }

  // Returns whether each rank has the same weights. REQUIRES: as many ranks.
  static bool SameWeights(const StageGraph& a, const StageGraph& b) {
    for (const RankId r : a.rank_ids()) {
      if (a.rank(r).memory.weights != b.rank(r).memory.weights) return false;
    }
    return true;
  }
  // Returns the weights of all ranks together.
  static Bytes WeightsOf(const StageGraph& graph) {
    Bytes sum;
    for (const RankSpec& rank : graph.ranks()) sum += rank.memory.weights;
    return sum;
  }

  // Returns the module and the rank of each stage that has tasks; none if two
  // tasks of a stage differ in them.
  using StagePlaces = std::map<StageId, std::pair<ModuleId, RankId>>;
  static std::optional<StagePlaces> PlacesOf(const StageGraph& graph) {
    StagePlaces places;
    for (const Task& task : graph.tasks()) {
      const std::pair place(task.module, task.rank);
      if (places.emplace(task.stage, place).first->second != place) return {};
    }
    return places;
  }

  // Checks that stages of the plan are where the partition has them. Says
  // nothing of a module that only one of them has: the samples may be others.
  absl::Status CheckStages() const {
    const std::optional<StagePlaces> own = PlacesOf(graph_);
    const std::optional<StagePlaces> job = PlacesOf(fused_.graph());
    if (!own || !job) return absl::OkStatus();
    const auto words = [&](const std::pair<ModuleId, RankId>& place) {
      return absl::StrFormat(
          "of module \"%s\" on rank %d",
          graph_.module_names()[static_cast<size_t>(place.first.value())],
          place.second.value());
    };
    for (const auto& [stage, place] : *own) {
      const auto right = job->find(stage);
      if (right == job->end() || right->second == place) continue;
      return Fail(absl::StrFormat("stage %d is %s; %s is right; %s",
                                  stage.value(), words(place),
                                  words(right->second), kOtherPartition));
    }
    const std::map<ModuleId, int> own_count = CountStages(*own);
    for (const auto& [module, right] : CountStages(*job)) {
      const auto count = own_count.find(module);
      if (count == own_count.end() || count->second == right) continue;
      return Fail(absl::StrFormat(
          "module \"%s\" has %d stages; %d are right; %s",
          graph_.module_names()[static_cast<size_t>(module.value())],
          count->second, right, kOtherPartition));
    }
    return absl::OkStatus();
  }

  static std::map<ModuleId, int> CountStages(const StagePlaces& places) {
    std::map<ModuleId, int> count;
    for (const auto& [stage, place] : places) ++count[place.first];
    return count;
  }

  absl::Status CheckTasks() const {
    IdVector<TaskId, TaskId> hides(graph_.num_tasks());
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      const TaskId right = split_.Find(KeyOf(task));
      if (right.is_none()) {
        return Fail(
            absl::StrCat(DescribeTask(graph_, t), " has no place in the step"));
      }
      const Task& same = split_.graph().task(right);
      if (task.rank != same.rank || task.module != same.module) {
        return Fail(absl::StrFormat(
            "%s is on rank %d, of module %d; rank %d and module %d are right",
            DescribeTask(graph_, t), task.rank.value(), task.module.value(),
            same.rank.value(), same.module.value()));
      }
      PIPELOOM_RETURN_IF_ERROR(CheckDuration(t));
      if (task.overlaps.is_none()) continue;
      if (!hides[task.overlaps].is_none()) {
        return Fail(
            absl::StrFormat("%s overlaps task %d, which already hides task %d",
                            DescribeTask(graph_, t), task.overlaps.value(),
                            hides[task.overlaps].value()));
      }
      hides[task.overlaps] = t;
    }
    for (const TaskId t : fused_.graph().task_ids()) {
      if (own_.Find(KeyOf(fused_.graph().task(t))).is_none()) {
        const Task& task = fused_.graph().task(t);
        return Fail(absl::StrFormat(
            "the %s of stage %d on microbatch %d, sub-microbatch %d is missing",
            task.pass == Pass::kForward ? "forward" : "backward",
            task.stage.value(), task.microbatch.value(), task.sub_microbatch));
      }
    }
    return absl::OkStatus();
  }

  bool IsSplit(const Task& backward) const {
    Key key = KeyOf(backward);
    std::get<Pass>(key) = Pass::kWeightGrad;
    return !own_.Find(key).is_none();
  }

  // Returns the least and the greatest time of a task alone. REQUIRES: the step
  // has it.
  std::pair<Duration, Duration> TimesAlone(const Task& task) const {
    Key key = KeyOf(task);
    Duration least = split_.graph().task(split_.Find(key)).duration;
    if (task.pass == Pass::kBackward && !IsSplit(task)) {
      least = fused_.graph().task(fused_.Find(key)).duration;
    }
    Duration most = least;
    if (task.recomputes) {
      std::get<Pass>(key) = Pass::kForward;
      most += split_.graph().task(split_.Find(key)).duration;
    }
    return {least, most};
  }

  // Returns how much of the time of two passes their pair hides.
  Duration Hidden(const Task& a, const Task& b) const {
    const auto pass = [&](const Task& task) {
      PairablePass found =
          (IsSplit(task) ? passes_.split : passes_.fused).at(KeyOf(task));
      found.time = TimesAlone(task).first;
      return found;
    };
    return HiddenTogether(pass(a), pass(b));
  }

  absl::Status CheckDuration(TaskId t) const {
    const Task& task = graph_.task(t);
    if (IsSecondOfPair(task))
      return CheckPair(task, graph_.task(task.overlaps));
    auto [least, most] = TimesAlone(task);
    const TaskId second = seconds_.empty() ? TaskId() : seconds_[t];
    if (!second.is_none()) {
      const Task& other = graph_.task(second);
      PIPELOOM_RETURN_IF_ERROR(CheckPair(other, task));
      const auto [other_least, other_most] = TimesAlone(other);
      const Duration hidden = Hidden(task, other);
      least += other_least - hidden;
      most += other_most - hidden;
    }
    if (!task.overlaps.is_none()) least = kZero;
    if (task.pass != Pass::kForward || !second.is_none()) {
      const auto part = [](Duration time) {
        return kRounding + Duration(std::llround(
                               static_cast<double>(time.count()) * kTolerance));
      };
      least -= part(least);
      most += part(most);
    }
    if (least <= task.duration && task.duration <= most) {
      return absl::OkStatus();
    }
    return Fail(absl::StrFormat(
        "%s: time is %d ns; %s is right", DescribeTask(graph_, t),
        task.duration.count(),
        least == most
            ? absl::StrCat(least.count())
            : absl::StrFormat("one in [%d, %d]", least.count(), most.count())));
  }

  // Checks that the two tasks have stages on which they can be a pair.
  absl::Status CheckPair(const Task& second, const Task& first) const {
    if (!passes_.allowed) {
      return Fail(
          "it runs forwards together with backwards, but "
          "setup.paired_forwards of the job is false");
    }
    for (const Task* task : {&first, &second}) {
      if (passes_.split.contains(KeyOf(*task))) continue;
      return Fail(absl::StrFormat(
          "stage %d on microbatch %d has no backward; only stages with "
          "backwards run passes together",
          task->stage.value(), task->microbatch.value()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckEdges() const {
    for (const EdgeId e : graph_.edge_ids()) {
      const Dependency& d = graph_.edge(e);
      const EdgeId right = split_.Find(split_.Find(KeyOf(graph_.task(d.from))),
                                       split_.Find(KeyOf(graph_.task(d.to))));
      if (right.is_none()) {
        return Fail(absl::StrFormat(
            "edge %d from task %d to task %d has no place in the step",
            e.value(), d.from.value(), d.to.value()));
      }
      const Dependency& same = split_.graph().edge(right);
      if (d.delay == same.delay && d.occupancy == same.occupancy &&
          d.payload == same.payload && d.rows == same.rows &&
          d.width == same.width) {
        continue;
      }
      return Fail(absl::StrFormat(
          "edge %d from task %d to task %d: delay %d, occupancy %d, payload "
          "%d, rows %d, width %d; delay %d, occupancy %d, payload %d, rows %d, "
          "width %d are right",
          e.value(), d.from.value(), d.to.value(), d.delay.count(),
          d.occupancy.count(), d.payload.count(), d.rows, d.width,
          same.delay.count(), same.occupancy.count(), same.payload.count(),
          same.rows, same.width));
    }
    return absl::OkStatus();
  }

  absl::Status CheckEpilogues() const {
    for (const RankId r : graph_.rank_ids()) {
      const Duration own = graph_.rank(r).epilogue;
      if (own == epilogues_[r]) continue;
      return Fail(absl::StrFormat(
          "rank %d: epilogue is %d; %d is right after its order", r.value(),
          own.count(), epilogues_[r].count()));
    }
    return absl::OkStatus();
  }

  const StageGraph& graph_;
  const IdVector<RankId, Duration> epilogues_;
  const JobGraph own_;
  const JobGraph fused_;
  const JobGraph split_;
  const Pairable& passes_;
  const IdVector<TaskId, TaskId> seconds_;
};

absl::Status CheckLossOf(const ExecutionPlan& plan,
                         const ExecutionPlan& right) {
  for (size_t k = 0;
       k < std::min(plan.loss_totals.size(), right.loss_totals.size()); ++k) {
    const LossTotal& a = plan.loss_totals[k];
    const LossTotal& b = right.loss_totals[k];
    if (a == b) continue;
    return Fail(absl::StrFormat(
        "loss_total %d is of module %d with tokens %d and instances %d; module "
        "%d, %d and %d are right",
        k, a.module.value(), a.tokens, a.instances, b.module.value(), b.tokens,
        b.instances));
  }
  for (size_t k = 0;
       k < std::min(plan.loss_shares.size(), right.loss_shares.size()); ++k) {
    const LossShare& a = plan.loss_shares[k];
    const LossShare& b = right.loss_shares[k];
    if (a == b) continue;
    return Fail(absl::StrFormat(
        "loss_share %d (microbatch %d, sub-microbatch %d) has tokens %d and "
        "instances %d; %d and %d are right",
        k, a.microbatch.value(), a.sub_microbatch, a.tokens, a.instances,
        b.tokens, b.instances));
  }
  if (plan.loss_totals.size() != right.loss_totals.size() ||
      plan.loss_shares.size() != right.loss_shares.size()) {
    return Fail(absl::StrFormat(
        "it has %d loss_shares and %d loss_totals; %d and %d are right",
        plan.loss_shares.size(), plan.loss_totals.size(),
        right.loss_shares.size(), right.loss_totals.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckShapesOf(const ExecutionPlan& plan,
                           const std::vector<PaddedShape>& right) {
  if (plan.padded_shapes.size() != right.size()) {
    return Fail(absl::StrFormat("it has %d padded_shapes; %d are right",
                                plan.padded_shapes.size(), right.size()));
  }
  for (size_t k = 0; k < right.size(); ++k) {
    const PaddedShape& a = plan.padded_shapes[k];
    const PaddedShape& b = right[k];
    if (a == b) continue;
    return Fail(absl::StrFormat(
        "padded_shape %d (microbatch %d, sub-microbatch %d) has tokens %d and "
        "bucket %d; %d and %d are right",
        k, a.microbatch.value(), a.sub_microbatch, a.tokens, a.bucket, b.tokens,
        b.bucket));
  }
  return absl::OkStatus();
}

// Returns the epilogues that the order of a plan leaves, in its emulation; none
// if it has other ranks.
IdVector<RankId, Duration> EpiloguesOf(const emulator::StepUpdate& update,
                                       const ExecutionPlan& plan,
                                       const StepTrace& trace) {
  if (plan.graph.num_ranks() != update.ranks.size()) return {};
  return emulator::EpiloguesInOrder(update, plan.graph, trace);
}

absl::Status CheckGraph(const ExecutionPlan& plan, const StepTrace& trace,
                        const emulator::StageCostModel& costs,
                        const Partition& partition,
                        const Microbatches& microbatches) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph fused,
      partition::BuildStageGraph(costs, partition, microbatches));
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph split,
      partition::BuildStageGraph(costs, partition, microbatches,
                                 {.split_backward = true}));
  const Pairable passes = PassesOf(
      costs.job(), split,
      partition::MakeStepMemory(costs, partition, microbatches, split.pairs,
                                IdVector<StageId, std::vector<MemoryChoice>>(
                                    partition.stages.size())));
  return PlanCheck(plan, fused.graph, split.graph, passes,
                   EpiloguesOf(*fused.update, plan, trace))
      .Run();
}

// Checks the passes of a trainer's stages.
absl::Status CheckTrainerGraph(const ExecutionPlan& plan,
                               const StepTrace& trace,
                               const emulator::StageCostModel& costs,
                               const Partition& partition,
                               const Microbatches& microbatches) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const TrainerGraph fused,
      MakeTrainerGraph(costs, partition, microbatches, false, {}));
  PIPELOOM_ASSIGN_OR_RETURN(
      const TrainerGraph split,
      MakeTrainerGraph(costs, partition, microbatches, true, {}));
  return PlanCheck(plan, fused.graph, split.graph, {},
                   EpiloguesOf(*fused.update, plan, trace))
      .Run();
}

}  // namespace

absl::Status CheckPlan(const PreparedJob& prepared,
                       const partition::PackedStep& packed,
                       const ExecutionPlan& plan) {
  const JobSpec& job = prepared.costs->job();
  if (plan.job != job.name) {
    return Fail(absl::StrFormat("it is of job \"%s\"; \"%s\" is right",
                                plan.job, job.name));
  }
  PIPELOOM_ASSIGN_OR_RETURN(const Microbatches microbatches,
                            partition::SplitMicrobatches(
                                job, packed, plan.replica, prepared.partition));
  const emulator::StageCostModel& costs =
      prepared.costs->ForReplica(plan.replica);
  if (plan.links != KeptLinks(costs, plan)) {
    return Fail("its shared links are not those of the job's cluster");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace, emulator::EmulateStep(plan));
  const auto* const trainer =
      dynamic_cast<const TrainerStrategy*>(prepared.strategy);
  PIPELOOM_RETURN_IF_ERROR(
      trainer != nullptr
          ? CheckTrainerGraph(plan, trace, costs, prepared.partition,
                              microbatches)
          : CheckGraph(plan, trace, costs, prepared.partition, microbatches));
  ExecutionPlan right;
  right.graph = plan.graph;
  partition::SetLoss(job.model, packed, microbatches, &right);
  if (trainer != nullptr) FitLossToTrainer(&right);
  PIPELOOM_RETURN_IF_ERROR(CheckLossOf(plan, right));
  PIPELOOM_RETURN_IF_ERROR(CheckShapesOf(
      plan, partition::PaddedShapesOf(job, microbatches, plan.graph)));
  if (plan.predicted_step_time != trace.step_time()) {
    return Fail(absl::StrFormat("predicted_step_time_ns is %d; %d is right",
                                plan.predicted_step_time.count(),
                                trace.step_time().count()));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::planner
