#include "ir/plan/trainer.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

constexpr TrainerLimits kTrainers[] = {
    {.name = "megatron",
     .most_stages = 8,
     .split_backward = true,
     .order = PassOrder::kAny,
     .plain_on_one_rank = true,
     .recompute_periods = true,
     .recompute_block = true,
     .most_sharding = OptimizerSharding::kZero1,
     .equal_expert_groups = true,
     .experts_need_sequence_parallel = true},
    {.name = "megatron-stock",
     .most_stages = 8,
     .encoders_first = true,
     .order = PassOrder::kStock,
     .plain_on_one_rank = true,
     .recompute_periods = true,
     .recompute_block = true,
     .most_sharding = OptimizerSharding::kZero1,
     .equal_expert_groups = true,
     .experts_need_sequence_parallel = true},
    {.name = "torch",
     .most_stages = 8,
     .vee = true,
     .split_backward = true,
     .order = PassOrder::kOneForwardOrder,
     .recompute_by_stage = true,
     .free_division = true},
    {.name = "torchtitan",
     .most_stages = 8,
     .vee = true,
     .split_backward = true,
     .order = PassOrder::kOneForwardOrder,
     .plain_on_one_rank = true,
     .divides_weights = true,
     .context = ContextParallelism::kAllGather,
     .whole_experts = true},
    {.name = "deepspeed",
     .order = PassOrder::kOneForwardOrder,
     .one_loss = true,
     .recompute_periods = true,
     .most_sharding = OptimizerSharding::kZero1,
     .optimizer_groups = false,
     .other_parallelism = false,
     .scattered_sends = true},
    {.name = "pipeloom", .everything = true},
};

// Returns whether the second segment goes back over the ranks, as far as its
// first stage shows.
bool Turns(const Partition& partition) {
  for (const Stage& stage : partition.stages) {
    if (stage.segment.value() != 1) continue;
    return partition.num_ranks > 1 && stage.rank.value() != 0;
  }
  return false;
}

// Returns the place in the chain of all segments.
int32_t PlaceOf(const Stage& stage, bool turns, int32_t ranks) {
  const int32_t r = stage.rank.value();
  const int32_t segment = stage.segment.value();
  return segment * ranks + (turns && segment % 2 == 1 ? ranks - 1 - r : r);
}

absl::string_view NameOf(OptimizerSharding sharding) {
  switch (sharding) {
    case OptimizerSharding::kNone:
      return "OPTIMIZER_SHARDING_NONE";
    case OptimizerSharding::kZero1:
      return "OPTIMIZER_SHARDING_ZERO1";
    case OptimizerSharding::kZero2:
      return "OPTIMIZER_SHARDING_ZERO2";
    case OptimizerSharding::kZero3:
      return "OPTIMIZER_SHARDING_ZERO3";
  }
  return "";
}

absl::string_view NameOf(ContextParallelism context) {
  switch (context) {
    case ContextParallelism::kRing:
      return "CONTEXT_PARALLELISM_RING";
    case ContextParallelism::kAllGather:
      return "CONTEXT_PARALLELISM_ALL_GATHER";
    case ContextParallelism::kAllToAll:
      return "CONTEXT_PARALLELISM_ALL_TO_ALL";
  }
  return "";
}

// Returns the GPUs that share one copy of the optimizer's state, or 0 if that
// is all that hold the same weights.
int32_t OptimizerGroup(const JobSpec& job) {
  const int32_t group = job.setup.optimizer_group;
  return job.training.optimizer_sharding != OptimizerSharding::kNone &&
                 group < job.parallel.dp * job.parallel.cp
             ? group
             : 0;
}

// Checks how the job divides the state of its replicas. What they do not divide
// needs no setting.
absl::Status CheckSharding(const TrainerLimits& trainer, const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  if (layout.dp * layout.cp <= 1) return absl::OkStatus();
  const OptimizerSharding sharding = job.training.optimizer_sharding;
  const auto refuse = [&](absl::string_view why) {
    return CannotExecute(trainer,
                         absl::StrCat("training.optimizer_sharding is ",
                                      NameOf(sharding), "; ", why));
  };
  if (sharding > trainer.most_sharding) {
    return refuse(absl::StrCat(
        "the trainer's pipeline divides no more than the optimizer's state "
        "over the replicas, so ",
        NameOf(trainer.most_sharding), " is right"));
  }
  if (trainer.divides_weights && sharding != OptimizerSharding::kZero3) {
    if (layout.pp == 1) {
      return refuse(
          "on one rank the trainer reduces gradients in every microbatch, so "
          "OPTIMIZER_SHARDING_ZERO3 is right");
    }
    if (sharding == OptimizerSharding::kZero2) {
      return refuse(
          "the trainer reduces gradients once a step or gathers weights for "
          "every pass, so OPTIMIZER_SHARDING_ZERO1 or "
          "OPTIMIZER_SHARDING_ZERO3 is right");
    }
    if (sharding == OptimizerSharding::kNone && layout.cp > 1) {
      return refuse(
          "the trainer divides weights over context-parallel GPUs, so "
          "OPTIMIZER_SHARDING_ZERO1 is right");
    }
  }
  if (job.setup.broadcasts_weights && sharding == OptimizerSharding::kZero1 &&
      !trainer.free_division) {
    return CannotExecute(
        trainer,
        "setup.broadcasts_weights is true; the trainer gives each replica an "
        "equal share of the optimizer's state and not whole tensors, so false "
        "is right");
  }
  const int32_t group = OptimizerGroup(job);
  if (group == 0) return absl::OkStatus();
  const int32_t all = layout.dp * layout.cp;
  if (!trainer.optimizer_groups || all % group != 0 ||
      (trainer.divides_weights && group % layout.cp != 0)) {
    return CannotExecute(
        trainer,
        absl::StrFormat("setup.optimizer_group is %d; the trainer divides the "
                        "optimizer's state over all of dp %d x cp %d%s, so 0 "
                        "is right",
                        group, layout.dp, layout.cp,
                        trainer.optimizer_groups
                            ? " or equal groups of whole replicas"
                            : ""));
  }
  const int64_t expert_replicas = layout.most_ep() / layout.ep;
  if (trainer.equal_expert_groups && expert_replicas % (all / group) != 0) {
    return CannotExecute(
        trainer,
        absl::StrFormat("setup.optimizer_group is %d; the trainer divides the "
                        "%d replicas of experts (parallel.ep is %d) into %d "
                        "groups too, so 0 is right",
                        group, expert_replicas, layout.ep, all / group));
  }
  return absl::OkStatus();
}

// Checks how the job divides the GPUs of a rank.
absl::Status CheckLayout(const TrainerLimits& trainer, const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  if (!trainer.other_parallelism) {
    for (const auto& [field, size] :
         {std::pair("cp", layout.cp), std::pair("ep", layout.ep)}) {
      if (size == 1) continue;
      return CannotExecute(
          trainer,
          absl::StrFormat("parallel.%s is %d; the trainer's pipeline has "
                          "replicas and tensor-parallel GPUs only, so 1 is "
                          "right",
                          field, size));
    }
  }
  if (layout.cp > 1 && trainer.context.has_value() &&
      layout.context != *trainer.context) {
    return CannotExecute(
        trainer,
        absl::StrCat("parallel.context_parallelism is ", NameOf(layout.context),
                     "; the trainer gathers keys and values, so ",
                     NameOf(*trainer.context), " is right"));
  }
  if (layout.tp > 1 && layout.pp > 1 && !job.setup.sequence_parallel &&
      job.setup.scattered_sends != trainer.scattered_sends) {
    return CannotExecute(
        trainer,
        absl::StrFormat(
            "setup.scattered_sends is %s; without sequence parallelism each "
            "tensor-parallel GPU of the trainer sends %s of an output, so %s "
            "is right",
            trainer.scattered_sends ? "false" : "true",
            trainer.scattered_sends ? "its part" : "all",
            trainer.scattered_sends ? "true" : "false"));
  }
  if (layout.tp == 1 || !HasExperts(job.model)) return absl::OkStatus();
  const int32_t expert_tp = layout.expert_tp > 0 ? layout.expert_tp : layout.tp;
  const int32_t right = layout.ep > 1 ? 1 : layout.tp;
  if (trainer.whole_experts && expert_tp != right) {
    return CannotExecute(
        trainer,
        absl::StrFormat("parallel.expert_tp is %d; with parallel.ep %d and "
                        "parallel.tp %d the trainer has a routed expert on %d "
                        "GPUs, so %d is right",
                        layout.expert_tp, layout.ep, layout.tp, right, right));
  }
  if (trainer.experts_need_sequence_parallel && !job.setup.sequence_parallel) {
    return CannotExecute(
        trainer,
        absl::StrFormat("setup.sequence_parallel is false; with experts and "
                        "parallel.tp %d the trainer stops at the first "
                        "forward, so true is right",
                        layout.tp));
  }
  return absl::OkStatus();
}

// Checks that experts lie within the replicas that share their state.
absl::Status CheckExpertReplicas(const TrainerLimits& trainer,
                                 const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  if (!trainer.divides_weights || layout.ep == 1) return absl::OkStatus();
  const int32_t most = FsdpOf(job).shard * layout.cp * layout.tp;
  if (most % layout.ep == 0) return absl::OkStatus();
  return CannotExecute(
      trainer,
      absl::StrFormat("parallel.ep is %d; with %s and setup.optimizer_group "
                      "%d the trainer has experts on %d GPUs, so a divisor of "
                      "that is right, or OPTIMIZER_SHARDING_ZERO3",
                      layout.ep, NameOf(job.training.optimizer_sharding),
                      job.setup.optimizer_group, most));
}

}  // namespace

FsdpSetting FsdpOf(const JobSpec& job) {
  const int32_t dp = job.parallel.dp;
  const OptimizerSharding sharding = job.training.optimizer_sharding;
  if (sharding == OptimizerSharding::kNone) return {.replicate = dp};
  const int32_t group = OptimizerGroup(job);
  const int32_t shard = group > 0 ? group / job.parallel.cp : dp;
  return {.replicate = dp / shard,
          .shard = shard,
          .gathers_again =
              sharding == OptimizerSharding::kZero3 &&
              (job.parallel.pp == 1 || !job.setup.gathered_in_pipeline)};
}

bool IsPlain(const TrainerLimits& trainer, int32_t num_ranks) {
  return trainer.plain_on_one_rank && num_ranks == 1;
}

absl::Status CannotExecute(const TrainerLimits& trainer,
                           absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("--for ", trainer.name, ": ", what,
                   "; --for pipeloom plans without the trainer's limits"));
}

absl::Span<const TrainerLimits> Trainers() { return kTrainers; }

const TrainerLimits* FindTrainer(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kTrainers), std::end(kTrainers),
                   [&](const TrainerLimits& t) { return t.name == name; });
  return found == std::end(kTrainers) ? nullptr : found;
}

absl::Status CheckTrainerJob(const TrainerLimits& trainer, const JobSpec& job) {
  if (trainer.everything) return absl::OkStatus();
  const ModelSpec& model = job.model;
  const ModuleId last(model.modules.size() - 1);
  for (const ModuleId m : model.modules.ids()) {
    const std::string& name = model.modules[m].name;
    if (job.IsFrozen(m)) {
      return CannotExecute(
          trainer,
          absl::StrCat("training.frozen_modules names ", name,
                       ", whose stages have no backward; the trainer "
                       "runs one of every forward, so train the module"));
    }
    if (m == last) continue;
    const ModuleId next(m.value() + 1);
    const auto feeds_next = [&](const ModuleEdge& edge) {
      return edge.from == m && edge.to == next;
    };
    if (std::none_of(model.edges.begin(), model.edges.end(), feeds_next)) {
      return CannotExecute(
          trainer,
          absl::StrCat("module ", name, " does not feed module ",
                       model.modules[next].name,
                       "; the trainer's stages are one chain, so modules "
                       "that run in parallel must be joined to one"));
    }
    for (const ModuleEdge& edge : model.edges) {
      if (edge.from != m || edge.to == next) continue;
      return CannotExecute(
          trainer, absl::StrCat("module ", name, " feeds module ",
                                model.modules[edge.to].name,
                                " past others; the trainer's stages are one "
                                "chain, so hand that input through them"));
    }
    for (const LayerSpec& layer : model.modules[m].layers) {
      if (layer.kind != LayerKind::kLossHead) continue;
      return CannotExecute(
          trainer,
          absl::StrCat("module ", name, " has the loss head ", layer.name,
                       ", and module ", model.modules[next].name,
                       " follows it; the trainer takes one loss "
                       "at the end, so join the heads there"));
    }
  }
  for (const ModuleParallelism& own : job.module_parallelism) {
    return CannotExecute(trainer,
                         absl::StrCat("parallel.modules gives ", own.module,
                                      " a layout of its own; the trainer has "
                                      "the job's for all modules"));
  }
  if (trainer.free_division) return absl::OkStatus();
  PIPELOOM_RETURN_IF_ERROR(CheckSharding(trainer, job));
  PIPELOOM_RETURN_IF_ERROR(CheckLayout(trainer, job));
  return CheckExpertReplicas(trainer, job);
}

absl::Status CheckTrainerPartition(const TrainerLimits& trainer,
                                   const JobSpec& job,
                                   const Partition& partition) {
  if (trainer.everything) return absl::OkStatus();
  for (const ModuleId m : partition.sub_microbatch_instances.ids()) {
    if (partition.sub_microbatch_instances[m] == 0) continue;
    return CannotExecute(
        trainer, absl::StrCat("the partition cuts microbatches of ",
                              job.model.modules[m].name, " into ",
                              partition.sub_microbatch_instances[m],
                              " instances each; 0, the whole microbatch, "
                              "is right"));
  }
  const int32_t ranks = partition.num_ranks;
  if (partition.num_segments > trainer.most_stages) {
    return CannotExecute(
        trainer,
        absl::StrFormat("the partition has %d segments; a rank has at most "
                        "%d stages",
                        partition.num_segments, trainer.most_stages));
  }
  if (IsPlain(trainer, ranks) && partition.num_segments > 1) {
    return CannotExecute(
        trainer,
        absl::StrFormat("the partition has %d segments on one rank, where "
                        "the trainer has no pipeline; 1 is right",
                        partition.num_segments));
  }
  const bool turns = Turns(partition);
  if (turns && !(trainer.vee && partition.num_segments == 2)) {
    return CannotExecute(trainer,
                         "the partition's second segment begins on the last "
                         "rank; the trainer's stages go round the ranks in a "
                         "loop");
  }
  int32_t place = -1;
  std::vector<Stage> chain;
  for (const ModuleId m : job.model.modules.ids()) {
    for (const StageId s : partition.StagesOf(m)) {
      chain.push_back(partition.stages[s]);
    }
  }
  for (const Stage& stage : chain) {
    const int32_t at = PlaceOf(stage, turns, ranks);
    if (at != place && at != place + 1) {
      return CannotExecute(
          trainer,
          absl::StrFormat("the partition has no chain of stages with as "
                          "many on every rank: after place %d comes rank "
                          "%d of segment %d",
                          place, stage.rank.value(), stage.segment.value()));
    }
    place = at;
    if (trainer.encoders_first && at > 0 &&
        stage.module.value() + 1 < job.model.modules.size()) {
      return CannotExecute(
          trainer,
          absl::StrCat("layers of ", job.model.modules[stage.module].name,
                       " lie behind the first stage; the trainer has "
                       "all modules before the last one there"));
    }
  }
  if (place + 1 != partition.num_segments * ranks) {
    return CannotExecute(
        trainer,
        absl::StrFormat("the model has layers for %d stages only; every "
                        "one of %d ranks needs one: use fewer ranks "
                        "(parallel.pp)",
                        place + 1, ranks));
  }
  return absl::OkStatus();
}

bool RecomputeSetting::is_none() const {
  return period == 0 && std::all_of(first.begin(), first.end(),
                                    [](int32_t n) { return n == 0; });
}

bool MayRecompute(const LayerSpec& layer) {
  return layer.kind == LayerKind::kTransformer ||
         layer.kind == LayerKind::kFixedWork;
}

int32_t NumRecomputable(const Stage& stage, const ModelSpec& model) {
  int32_t count = 0;
  for (int32_t i = 0; i < stage.num_layers; ++i) {
    const LayerId layer(stage.first_layer.value() + i);
    count += MayRecompute(model.modules[stage.module].layers[layer]) ? 1 : 0;
  }
  return count;
}

IdVector<StageId, MemoryChoice> ChoicesOf(const RecomputeSetting& setting,
                                          const Partition& partition,
                                          const ModelSpec& model) {
  IdVector<StageId, MemoryChoice> choices(partition.stages.size());
  if (setting.is_none()) return choices;
  for (const StageId s : choices.ids()) {
    const Stage& stage = partition.stages[s];
    int32_t left = setting.period > 0 ? stage.num_layers : setting.first[s];
    MemoryChoice choice;
    choice.period = std::max(1, setting.period);
    choice.layers.resize(static_cast<size_t>(stage.num_layers));
    for (int32_t i = 0; i < stage.num_layers && left > 0; ++i) {
      const LayerId layer(stage.first_layer.value() + i);
      if (!MayRecompute(model.modules[stage.module].layers[layer])) continue;
      choice.layers[static_cast<size_t>(i)] = MemoryStrategy::kRecompute;
      --left;
    }
    if (!choice.keeps_everything()) choices[s] = std::move(choice);
  }
  return choices;
}

IdVector<StageId, int32_t> TrainerStages(const Partition& partition) {
  IdVector<StageId, int32_t> stages(partition.stages.size());
  const bool turns = Turns(partition);
  for (const StageId s : stages.ids()) {
    stages[s] = PlaceOf(partition.stages[s], turns, partition.num_ranks);
  }
  return stages;
}

}  // namespace pipeloom
