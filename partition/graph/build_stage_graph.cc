#include "partition/graph/build_stage_graph.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "partition/graph/policy_effects.h"

namespace pipeloom::partition {
namespace {

using emulator::StageCost;
using emulator::StageCostModel;

constexpr int64_t kMaxTasks = int64_t{1} << 24;
constexpr int64_t kMaxEdges = int64_t{1} << 26;

absl::Status CheckInputs(const JobSpec& job, const Partition& partition,
                         const Microbatches& microbatches,
                         const GraphOptions& options) {
  PIPELOOM_RETURN_IF_ERROR(ValidatePartition(partition, job.model));
  PIPELOOM_RETURN_IF_ERROR(ValidateMicrobatches(microbatches, job.model));
  if (partition.num_ranks != job.parallel.pp) {
    return absl::InvalidArgumentError(
        absl::StrFormat("partition: num_ranks is %d; parallel.pp is %d",
                        partition.num_ranks, job.parallel.pp));
  }
  return ValidateMemoryPolicy(options.memory, partition, microbatches);
}

// The tasks of one stage on one sub-microbatch; none for passes that do not
// exist.
struct StageTasks {
  TaskId forward{};
  TaskId backward{};
  StagePairId pair{};
  const StageCost* cost = nullptr;  // Into the run's `costs`.
};

// A module in one microbatch: sub-microbatch j's stages are
// tasks[j * stages, (j + 1) * stages).
struct ModuleRun {
  int32_t first_sub = 0;
  int32_t num_subs = 0;
  bool idle = false;  // Has tasks without work (GraphOptions::every_pass).
  bool trainable = false;
  bool fed_by_trainable = false;
  std::vector<StageTasks> tasks{};
  std::vector<StageCostModel::CostRow> costs{};  // Indexed by sub-microbatch.
  bool present() const { return num_subs > 0; }
  bool has_backward() const { return trainable || fed_by_trainable; }
};

// The output of a stage without work.
StageCost IdleCost() {
  StageCost cost;
  cost.output = Bytes(1);
  cost.output_rows = 1;
  cost.output_width = 1;
  return cost;
}

class GraphBuilder {
 public:
  GraphBuilder(const StageCostModel& costs, const Partition& partition,
               const Microbatches& microbatches, const GraphOptions& options)
      : costs_(costs),
        model_(costs.job().model),
        partition_(partition),
        microbatches_(microbatches),
        options_(options) {
    const int32_t modules = model_.modules.size();
    stages_of_.resize(modules);
    for (const StageId s : partition.stages.ids()) {
      stages_of_[partition.stages[s].module].push_back(s);
    }
    slots_.slot_of.resize(partition.stages.size());
    for (const std::vector<StageId>& ids : stages_of_) {
      std::vector<Stage> stages;
      for (const StageId s : ids) stages.push_back(partition.stages[s]);
      emulator::StageRow row = costs.Row(stages);
      const auto first = static_cast<int32_t>(slots_.prints.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        slots_.slot_of[ids[i]] = first + row.slot_of[i];
      }
      slots_.prints.insert(slots_.prints.end(), row.print_of_slot.begin(),
                           row.print_of_slot.end());
      rows_.push_back(std::move(row));
    }
    passes_.resize(partition.stages.size());
    frozen_.resize(modules);
    fed_by_.resize(modules);
    feeds_.resize(modules);
    runs_.resize(modules);
    for (const ModuleId m : model_.modules.ids()) {
      frozen_[m] = costs.job().IsFrozen(m);
    }
    for (const ModuleEdge& edge : model_.edges) {
      fed_by_[edge.to].push_back(edge.from);
      feeds_[edge.from].push_back(edge.to);
    }
    // A model may list an edge between two modules twice.
    for (const ModuleId m : model_.modules.ids()) {
      for (std::vector<ModuleId>* list : {&fed_by_[m], &feeds_[m]}) {
        std::sort(list->begin(), list->end());
        list->erase(std::unique(list->begin(), list->end()), list->end());
      }
    }
  }

  absl::StatusOr<BuiltGraph> Build() {
    PIPELOOM_RETURN_IF_ERROR(CheckSize());
    const auto& subs = microbatches_.sub_microbatches;
    int32_t next = 0;  // The first microbatch that is not added.
    const auto add_idle = [&](int32_t until) {
      if (!options_.every_pass) return;
      for (; next < until; ++next) AddMicrobatch(MicrobatchId(next), 0, 0);
    };
    for (int32_t begin = 0; begin < subs.size();) {
      int32_t end = begin;
      const MicrobatchId microbatch = subs[SubMicrobatchId(begin)].microbatch;
      add_idle(microbatch.value());
      next = microbatch.value() + 1;
      while (end < subs.size() &&
             subs[SubMicrobatchId(end)].microbatch == microbatch) {
        ++end;
      }
      AddMicrobatch(microbatch, begin, end);
      begin = end;
    }
    add_idle(microbatches_.num_microbatches);
    SetTransients();
    std::vector<std::string> names;
    for (const ModuleSpec& module : model_.modules) {
      names.push_back(module.name);
    }
    StageCostModel::StepRanks step = costs_.Ranks(partition_, TimesOfPasses());
    if (!options_.memory.empty()) {
      PIPELOOM_RETURN_IF_ERROR(ApplyPolicy(options_.memory, &step.ranks));
    } else if (std::any_of(pairs_.begin(), pairs_.end(),
                           [](const StagePair& pair) {
                             return pair.makes_gradients;
                           })) {
      MemoryPolicy keep{.choices = {MemoryChoice{}}};
      keep.choice_of.resize(pairs_.size());
      PIPELOOM_RETURN_IF_ERROR(ApplyPolicy(keep, &step.ranks));
    }
    BuiltGraph built;
    built.model_flops = model_flops_;
    built.update =
        std::make_shared<const emulator::StepUpdate>(std::move(step.update));
    PIPELOOM_ASSIGN_OR_RETURN(
        built.graph, StageGraph::Create(costs_.job().name,
                                        std::move(step.ranks), std::move(names),
                                        std::move(tasks_), std::move(edges_)));
    built.pairs = std::move(pairs_);
    return built;
  }

 private:
  // Counts tasks and edges with a margin, and reserves memory for them.
  absl::Status CheckSize() {
    const auto& subs = microbatches_.sub_microbatches;
    IdVector<ModuleId, int64_t> count(model_.modules.size(), 0);
    int64_t num_tasks = 0;
    int64_t num_edges = 0;
    const auto add_joins = [&] {
      for (const ModuleId m : count.ids()) {
        for (const ModuleId from : fed_by_[m]) {
          num_edges += 2 * count[m] * count[from];
        }
      }
      std::fill(count.begin(), count.end(), 0);
    };
    MicrobatchId current;
    for (const SubMicrobatch& sub : subs) {
      if (sub.microbatch != current) add_joins();
      current = sub.microbatch;
      ++count[sub.module];
      const auto stages = static_cast<int64_t>(stages_of_[sub.module].size());
      num_tasks += (options_.split_backward ? 3 : 2) * stages;
      num_edges += 4 * stages;
    }
    add_joins();
    if (options_.every_pass) {
      num_tasks = int64_t{3} * partition_.stages.size() *
                  microbatches_.num_microbatches;
      num_edges = 3 * num_tasks;
    }
    if (num_tasks > kMaxTasks || num_edges > kMaxEdges) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the step has up to %d tasks and %d dependencies; at most %d and %d "
          "are allowed: use fewer microbatches or larger sub-microbatches",
          num_tasks, num_edges, kMaxTasks, kMaxEdges));
    }
    tasks_.reserve(static_cast<int32_t>(num_tasks));
    edges_.reserve(static_cast<int32_t>(num_edges));
    return absl::OkStatus();
  }

  // Adds a microbatch, whose sub-microbatches are [begin, end).
  void AddMicrobatch(MicrobatchId microbatch, int32_t begin, int32_t end) {
    for (ModuleRun& run : runs_) run.num_subs = 0;
    for (int32_t i = begin; i < end; ++i) {
      ModuleRun& run =
          runs_[microbatches_.sub_microbatches[SubMicrobatchId(i)].module];
      if (run.num_subs == 0) run.first_sub = i;
      ++run.num_subs;
    }
    for (const ModuleId m : model_.modules.ids()) {
      ModuleRun& run = runs_[m];
      run.idle = options_.every_pass && !run.present();
      if (run.idle) {
        run.num_subs = 1;
        idle_sub_.module = m;
        idle_sub_.microbatch = microbatch;
      }
      if (!run.present()) continue;
      run.trainable = !frozen_[m];
      run.fed_by_trainable = false;
      for (const ModuleId from : fed_by_[m]) {
        run.fed_by_trainable |= runs_[from].present() && !runs_[from].idle &&
                                runs_[from].has_backward();
      }
      AddForwards(m);
    }
    for (int32_t m = model_.modules.size(); m-- > 0;) {
      const ModuleRun& run = runs_[ModuleId(m)];
      if (run.idle) {
        idle_sub_.module = ModuleId(m);
        idle_sub_.microbatch = microbatch;
      }
      if (run.present() && run.has_backward()) AddBackwards(ModuleId(m));
    }
  }

  const SubMicrobatch& Sub(const ModuleRun& run, int32_t j) const {
    if (run.idle) return idle_sub_;
    return microbatches_.sub_microbatches[SubMicrobatchId(run.first_sub + j)];
  }
  static StageTasks& At(ModuleRun& run, int32_t j, size_t stage,
                        size_t stages) {
    return run.tasks[static_cast<size_t>(j) * stages + stage];
  }
  // Returns whether the one backward of each of the module's stages makes their
  // gradients.
  bool MakesGradients(ModuleId m) const {
    return microbatches_.num_microbatches == 1 && runs_[m].num_subs == 1 &&
           !runs_[m].idle && runs_[m].trainable &&
           model_.modules[m].adapter_rank == 0 &&
           emulator::MakesGradients(costs_.job());
  }
  // Returns whether the gradient is passed on to before the module's stage.
  static bool NeedsInputGrad(const ModuleRun& run, size_t stage) {
    return run.fed_by_trainable || (run.trainable && stage > 0);
  }

  Task NewTask(StageId id, const SubMicrobatch& sub, Pass pass) const {
    return {.rank = partition_.stages[id].rank,
            .pass = pass,
            .module = sub.module,
            .stage = id,
            .microbatch = sub.microbatch,
            .sub_microbatch = sub.index};
  }

  void AddForwards(ModuleId m) {
    ModuleRun& run = runs_[m];
    const std::vector<StageId>& stages = stages_of_[m];
    run.tasks.assign(static_cast<size_t>(run.num_subs) * stages.size(), {});
    run.costs.clear();
    for (int32_t j = 0; j < run.num_subs; ++j) {
      const SubMicrobatch& sub = Sub(run, j);
      if (!run.idle) {
        run.costs.push_back(
            costs_.Costs(rows_[m], sub.shape, run.fed_by_trainable));
      }
      // Work on padding is no work of the model.
      const auto data = sub.unpadded ? costs_.Costs(rows_[m], *sub.unpadded,
                                                    run.fed_by_trainable)
                                     : nullptr;
      for (size_t s = 0; s < stages.size(); ++s) {
        const StageId id = stages[s];
        StageTasks& at = At(run, j, s, stages.size());
        const StageCost& cost =
            run.idle
                ? idle_cost_
                : (*run.costs.back())[static_cast<size_t>(rows_[m].slot_of[s])];
        at.cost = &cost;
        const auto slot =
            static_cast<size_t>(run.idle ? 0 : rows_[m].slot_of[s]);
        model_flops_ +=
            data != nullptr ? (*data)[slot].model_flops : cost.model_flops;
        Task task = NewTask(id, sub, Pass::kForward);
        task.duration = cost.forward;
        if (!run.idle) {
          PassSum& sum = passes_[id];
          ++sum.count;
          sum.forward += cost.forward;
          if (run.has_backward()) {
            sum.backward += cost.fused;
            // It may recompute its forward and run with another one.
            sum.longest = std::max(sum.longest, cost.fused + 2 * cost.forward);
          }
        }
        if (!run.has_backward()) {
          transients_.push_back({.task = TaskId(tasks_.size()),
                                 .input = cost.input,
                                 .output = cost.output,
                                 .scratch = cost.scratch.forward});
        } else {
          task.alloc = cost.activations;
        }
        at.forward = tasks_.push_back(task);
        at.pair = StagePairId();
        if (!run.idle) {
          at.pair = pairs_.push_back(
              {.forward = at.forward,
               .stage = id,
               .sub_microbatch = SubMicrobatchId(run.first_sub + j),
               .needs_input_grad = NeedsInputGrad(run, s),
               .makes_gradients = MakesGradients(m)});
        }
        if (s > 0) {
          const StageTasks& before = At(run, j, s - 1, stages.size());
          Connect(before.forward, at.forward, *before.cost, 0, 1);
        } else {
          JoinForward(m, j, at.forward);
        }
      }
    }
  }

  // Makes sub-microbatch j of module m wait for all output of the modules that
  // feed it.
  void JoinForward(ModuleId m, int32_t j, TaskId task) {
    const int32_t parts = runs_[m].num_subs;
    for (const ModuleId from : fed_by_[m]) {
      ModuleRun& feeder = runs_[from];
      const size_t stages = stages_of_[from].size();
      for (int32_t i = 0; i < feeder.num_subs; ++i) {
        const StageTasks& last = At(feeder, i, stages - 1, stages);
        Connect(last.forward, task, *last.cost, j, parts);
      }
    }
  }

  void AddBackwards(ModuleId m) {
    ModuleRun& run = runs_[m];
    const std::vector<StageId>& stages = stages_of_[m];
    for (int32_t j = 0; j < run.num_subs; ++j) {
      const SubMicrobatch& sub = Sub(run, j);
      for (size_t s = stages.size(); s-- > 0;) {
        const StageId id = stages[s];
        StageTasks& at = At(run, j, s, stages.size());
        const StageCost& cost = *at.cost;
        const bool split = options_.split_backward && run.trainable;
        Task task = NewTask(id, sub, Pass::kBackward);
        task.duration = split ? cost.backward : cost.fused;
        task.alloc = split ? cost.scratch.split : cost.scratch.fused;
        task.free = task.alloc +
                    (split ? std::min(cost.freed_by_backward, cost.activations)
                           : cost.activations);
        at.backward = tasks_.push_back(task);
        if (!run.idle) {
          pairs_[at.pair].backward = at.backward;
          pairs_[at.pair].edge = EdgeId(edges_.size());
        }
        Connect(at.forward, at.backward, {}, 0, 1);
        if (s + 1 < stages.size()) {
          Connect(At(run, j, s + 1, stages.size()).backward, at.backward, cost,
                  0, 1);
        } else {
          JoinBackward(m, at);
        }
        if (split) {
          Task weight_grad = NewTask(id, sub, Pass::kWeightGrad);
          weight_grad.duration = cost.weight_grad;
          weight_grad.free = cost.activations + task.alloc - task.free;
          const TaskId added = tasks_.push_back(weight_grad);
          if (!run.idle) pairs_[at.pair].weight_grad = added;
          Connect(at.backward, added, {}, 0, 1);
        }
      }
    }
  }

  // Makes the last stage of module m wait for the input gradients of all
  // modules it feeds.
  void JoinBackward(ModuleId m, const StageTasks& at) {
    for (const ModuleId to : feeds_[m]) {
      ModuleRun& consumer = runs_[to];
      if (!consumer.present()) continue;
      const size_t stages = stages_of_[to].size();
      for (int32_t i = 0; i < consumer.num_subs; ++i) {
        const StageTasks& first = At(consumer, i, 0, stages);
        PIPELOOM_DCHECK(!first.backward.is_none());
        Connect(first.backward, at.backward, *at.cost, i, consumer.num_subs);
      }
    }
  }

  // Makes a transfer as slow as the job says of its link.
  void Slow(RankId from, RankId to, Dependency* edge) const {
    double factor = 1;
    Duration added{};
    for (const SlowRankLink& slow : costs_.job().slow_rank_links) {
      if (slow.from != from || slow.to != to) continue;
      factor *= slow.factor;
      added += slow.added;
    }
    if (factor == 1 && added == kZero) return;
    const auto scaled = [&](Duration time) {
      return Nanoseconds(
          std::llround(static_cast<double>(time.count()) * factor));
    };
    edge->delay = scaled(edge->delay) + added;
    edge->occupancy = scaled(edge->occupancy);
  }

  // Connects two tasks by part `part` of `parts` of a stage's output, or of its
  // gradient.
  void Connect(TaskId from, TaskId to, const StageCost& output, int32_t part,
               int32_t parts) {
    Dependency edge{.from = from, .to = to};
    const RankId sender = tasks_[from].rank;
    const RankId receiver = tasks_[to].rank;
    const auto share = [&](int64_t whole) {
      return whole / parts + (part < whole % parts ? 1 : 0);
    };
    edge.payload = Bytes(share(output.output.count()));
    edge.rows = share(output.output_rows);
    edge.width = output.output_width;
    if (sender != receiver) {
      const StageCostModel::Transfer transfer =
          costs_.TransferTime(sender, receiver, edge.payload);
      edge.delay = transfer.time;
      edge.occupancy = std::min(transfer.occupancy, transfer.time);
      Slow(sender, receiver, &edge);
    }
    edges_.push_back(edge);
  }

  // Returns the times of each stage's passes; the means have both gradients in
  // one pass and nothing recomputed.
  IdVector<StageId, emulator::PassTimes> TimesOfPasses() const {
    IdVector<StageId, emulator::PassTimes> times(passes_.size());
    for (const StageId s : passes_.ids()) {
      const PassSum& sum = passes_[s];
      if (sum.count == 0) continue;
      times[s] = {.forward = sum.forward / sum.count,
                  .backward = sum.backward / sum.count,
                  .longest = sum.longest};
    }
    return times;
  }

  // Sets the memory that stages without a backward hold while they run: input
  // and output, less what the edges hold.
  void SetTransients() {
    if (transients_.empty()) return;
    IdVector<TaskId, Bytes> handed_on(tasks_.size());
    for (const Dependency& edge : edges_) handed_on[edge.from] += edge.payload;
    for (const Transient& t : transients_) {
      Task& task = tasks_[t.task];
      const Bytes stays = t.output - std::min(t.output, handed_on[t.task]);
      task.alloc = t.input + std::max(stays, t.scratch);
      task.free = task.alloc;
    }
  }

  // Changes tasks, edges and ranks from everything kept to the policy.
  absl::Status ApplyPolicy(const MemoryPolicy& policy,
                           IdVector<RankId, RankSpec>* ranks) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const PolicyEffects effects,
        PolicyEffects::Create(costs_, partition_, microbatches_, slots_, policy,
                              pairs_, tasks_));
    ApplyEffects(pairs_, effects.of_pair(), ranks, &tasks_, &edges_);
    return absl::OkStatus();
  }

  const StageCostModel& costs_;
  const ModelSpec& model_;
  const Partition& partition_;
  const Microbatches& microbatches_;
  const GraphOptions& options_;
  IdVector<ModuleId, std::vector<StageId>> stages_of_{};
  IdVector<ModuleId, emulator::StageRow> rows_{};
  StageSlots slots_{};
  IdVector<ModuleId, bool> frozen_{};
  IdVector<ModuleId, std::vector<ModuleId>> fed_by_{};
  IdVector<ModuleId, std::vector<ModuleId>> feeds_{};
  IdVector<ModuleId, ModuleRun> runs_{};  // Runs in the current microbatch.
  SubMicrobatch idle_sub_{};  // The idle module that is being added.
  const StageCost idle_cost_ = IdleCost();
  IdVector<TaskId, Task> tasks_{};
  IdVector<EdgeId, Dependency> edges_{};
  IdVector<StagePairId, StagePair> pairs_{};
  struct Transient {
    TaskId task{};
    Bytes input{};
    Bytes output{};
    Bytes scratch{};
  };
  std::vector<Transient> transients_{};
  struct PassSum {
    int64_t count = 0;
    Duration forward{};
    Duration backward{};
    Duration longest{};
  };
  IdVector<StageId, PassSum> passes_{};
  Flops model_flops_{};
};

}  // namespace

absl::StatusOr<BuiltGraph> BuildStageGraph(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, const GraphOptions& options) {
  PIPELOOM_RETURN_IF_ERROR(
      CheckInputs(costs.job(), partition, microbatches, options));
  return GraphBuilder(costs, partition, microbatches, options).Build();
}

}  // namespace pipeloom::partition
