#include "ir/plan/trainer.h"

#include <algorithm>
#include <iterator>
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
     .recompute_block = true},
    {.name = "megatron-stock",
     .most_stages = 8,
     .encoders_first = true,
     .order = PassOrder::kStock,
     .plain_on_one_rank = true,
     .recompute_periods = true,
     .recompute_block = true},
    {.name = "torch",
     .most_stages = 8,
     .vee = true,
     .split_backward = true,
     .order = PassOrder::kOneForwardOrder,
     .recompute_by_stage = true},
    {.name = "torchtitan",
     .most_stages = 8,
     .vee = true,
     .split_backward = true,
     .order = PassOrder::kOneForwardOrder,
     .plain_on_one_rank = true},
    {.name = "deepspeed",
     .order = PassOrder::kOneForwardOrder,
     .one_loss = true,
     .recompute_periods = true},
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

}  // namespace

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
  return absl::OkStatus();
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
