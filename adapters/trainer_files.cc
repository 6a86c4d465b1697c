#include "adapters/trainer_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "adapters/action_table.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_layout.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

// The trainer's stages, each with its parts in data-flow order.
using TrainerStageList = std::vector<std::vector<StageId>>;

TrainerStageList StageList(const JobSpec& job, const Partition& partition) {
  const IdVector<StageId, int32_t> stages = TrainerStages(partition);
  TrainerStageList list(
      static_cast<size_t>(partition.num_ranks * partition.num_segments));
  for (const ModuleId m : job.model.modules.ids()) {
    for (const StageId s : partition.StagesOf(m)) {
      list[static_cast<size_t>(stages[s])].push_back(s);
    }
  }
  return list;
}

const LayerSpec& LayerOf(const JobSpec& job, const Stage& stage, int32_t i) {
  return job.model.modules[stage.module]
      .layers[LayerId(stage.first_layer.value() + i)];
}

// Describes a stage's layers: "vision_encoder layers 0-15, backbone layers
// 0-3".
std::string LayersText(const JobSpec& job, const Partition& partition,
                       const std::vector<StageId>& parts) {
  std::vector<std::string> texts;
  for (const StageId s : parts) {
    const Stage& stage = partition.stages[s];
    texts.push_back(
        absl::StrCat(job.model.modules[stage.module].name, " layers ",
                     stage.first_layer.value(), "-",
                     stage.first_layer.value() + stage.num_layers - 1));
  }
  return absl::StrJoin(texts, ", ");
}

// Lists the stages, in comments.
std::string StageComments(const JobSpec& job, const Partition& partition) {
  std::string text;
  const TrainerStageList list = StageList(job, partition);
  for (size_t i = 0; i < list.size(); ++i) {
    absl::StrAppend(&text, "# stage ", i, ": rank ",
                    partition.stages[list[i].front()].rank.value(), ", ",
                    LayersText(job, partition, list[i]), "\n");
  }
  return text;
}

// Returns the names of modules as a trainer's model would have them: those of
// torchtitan's models, which splits a model by its own children and the items
// of those that are lists. Modules before the last one put their name in front.
std::string ModuleNames(const JobSpec& job, const Partition& partition,
                        const std::vector<StageId>& parts) {
  std::vector<std::string> names;
  for (const StageId s : parts) {
    const Stage& stage = partition.stages[s];
    const ModuleSpec& module = job.model.modules[stage.module];
    const bool last = stage.module.value() + 1 == job.model.modules.size();
    const std::string prefix = last ? "" : absl::StrCat(module.name, "_");
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const LayerSpec& layer = LayerOf(job, stage, i);
      int32_t number = 0;
      for (int32_t l = 0; l < stage.first_layer.value() + i; ++l) {
        number += MayRecompute(module.layers[LayerId(l)]) ? 1 : 0;
      }
      if (layer.kind == LayerKind::kEmbedding) {
        names.push_back(absl::StrCat("\"", prefix, "tok_embeddings\""));
      } else if (layer.kind == LayerKind::kLossHead) {
        names.push_back(absl::StrCat("\"", prefix, "norm\""));
        names.push_back(absl::StrCat("\"", prefix, "lm_head\""));
      } else if (MayRecompute(layer)) {
        names.push_back(absl::StrCat("\"", prefix, "layers.", number, "\""));
      } else {
        names.push_back(absl::StrCat("\"", prefix, layer.name, "\""));
      }
    }
  }
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

// Returns Megatron-Core's symbol of a layer of a hybrid model, which is one
// block; 0 for other layers.
char HybridSymbol(const LayerSpec& layer) {
  if (BlocksOf(layer) != 1) return 0;
  if (layer.state_space.heads > 0) return 'M';
  if (layer.delta_net.value_heads > 0) return 'G';
  if (layer.ffn.experts > 0) return 'E';
  if (layer.ffn.hidden > 0) return '-';
  if (layer.attention.kv_rank > 0) return '+';
  return HasMixer(layer) ? '*' : 0;
}

// Returns the symbols of the stages' layers of the module, or nothing where a
// layer has none: Megatron-Core then has no hybrid model of it.
std::vector<std::string> HybridStages(const JobSpec& job,
                                      const Partition& partition,
                                      ModuleId module) {
  std::vector<std::string> stages;
  for (const std::vector<StageId>& parts : StageList(job, partition)) {
    std::string symbols;
    for (const StageId s : parts) {
      const Stage& stage = partition.stages[s];
      if (stage.module != module) continue;
      for (int32_t i = 0; i < stage.num_layers; ++i) {
        const LayerSpec& layer = LayerOf(job, stage, i);
        if (!MayRecompute(layer)) continue;
        const char symbol = HybridSymbol(layer);
        if (symbol == 0) return {};
        symbols += symbol;
      }
    }
    stages.push_back(symbols);
  }
  return stages;
}

// Returns the arguments that place the last module's layers, with a comment for
// each property of the partition that they cannot express.
absl::StatusOr<std::string> MegatronLayout(const JobSpec& job,
                                           const Partition& partition) {
  const ModuleId last(job.model.modules.size() - 1);
  std::vector<int32_t> layers;
  std::string comments;
  int32_t all = 0;
  for (const std::vector<StageId>& parts : StageList(job, partition)) {
    int32_t count = 0;
    for (const StageId s : parts) {
      const Stage& stage = partition.stages[s];
      if (stage.module == last) {
        count += NumRecomputable(stage, job.model);
        const bool embeds =
            LayerOf(job, stage, 0).kind == LayerKind::kEmbedding;
        if (embeds && !layers.empty()) {
          absl::StrAppend(&comments,
                          "# the layout has the embedding in stage 0; the plan "
                          "has it in stage ",
                          layers.size(), "\n");
        }
      } else if (!layers.empty() && comments.empty()) {
        comments =
            "# the model provider places the layers of other modules, as in "
            "the list of stages\n";
      }
    }
    layers.push_back(count);
    all += count;
  }
  const std::vector<std::string> hybrid = HybridStages(job, partition, last);
  if (all > 0 && !hybrid.empty()) {
    return absl::StrCat("--hybrid-layer-pattern \"", absl::StrJoin(hybrid, "|"),
                        "\"\n", comments);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const auto symbols, MegatronLayoutOf(layers));
  const std::string text = PrintMegatronLayout(symbols);
  PIPELOOM_RETURN_IF_ERROR(
      ParseMegatronLayout(text, partition.num_ranks).status());
  return absl::StrCat("--num-layers ", all,
                      "\n--pipeline-model-parallel-layout \"", text, "\"\n",
                      comments);
}

// Returns the rows of a microbatch that is one sequence for the trainer; 0: it
// has several, whose length the job does not say.
int64_t SequenceLength(const TrainingSpec& training) {
  return training.batching == SequenceBatching::kPacked &&
                 training.microbatch_samples <= 1
             ? training.microbatch_tokens
             : 0;
}

// Returns whether neighbouring GPUs are the ranks of a replica. Trainers have
// the replicas of a rank there, unless they are told otherwise.
bool RanksAreNeighbours(const ParallelLayout& layout) {
  return layout.order == GpuOrder::kPipelineInside && layout.pp > 1 &&
         layout.dp > 1;
}

// Returns a comment for trainers that cannot be told otherwise.
std::string OrderComment(const ParallelLayout& layout) {
  return RanksAreNeighbours(layout)
             ? "# the prediction is for pipeline ranks on neighbouring GPUs; "
               "the "
               "trainer has\n# replicas there: plan with "
               "parallel.gpu_order=GPU_ORDER_REPLICAS_INSIDE\n"
             : "";
}

// Returns the arguments that divide the work of a rank's GPUs, and the state of
// those that hold the same weights, and that place the GPUs.
std::string MegatronDivision(const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  std::string text;
  if (RanksAreNeighbours(layout)) text += "--use-tp-pp-dp-mapping\n";
  if (layout.tp > 1 && job.setup.sequence_parallel) {
    text += "--sequence-parallel\n";
  }
  if (layout.expert_tp > 0 && layout.tp > 1) {
    absl::StrAppend(&text, "--expert-tensor-parallel-size ", layout.expert_tp,
                    "\n");
  }
  if (layout.cp > 1) {
    absl::StrAppend(&text, "--cp-comm-type ",
                    layout.context == ContextParallelism::kRing ? "p2p"
                    : layout.context == ContextParallelism::kAllGather
                        ? "all_gather"
                        : "a2a",
                    "\n");
  }
  if (job.training.optimizer_sharding != OptimizerSharding::kNone) {
    text += "--use-distributed-optimizer\n";
    const int32_t all = layout.dp * layout.cp;
    const int32_t group = job.setup.optimizer_group;
    if (group > 0 && group < all) {
      absl::StrAppend(&text, "--num-distributed-optimizer-instances ",
                      all / group, "\n");
    }
  }
  const int64_t length = SequenceLength(job.training);
  if (length > 0) {
    absl::StrAppend(&text, "--micro-batch-size 1\n--seq-length ", length, "\n");
  }
  return text;
}

absl::StatusOr<std::string> MegatronArguments(const TrainerLimits& trainer,
                                              const JobSpec& job,
                                              const Partition& partition,
                                              const RecomputeSetting& recompute,
                                              const TrainerFile& schedule,
                                              absl::string_view file) {
  std::string text = absl::StrFormat(
      "--tensor-model-parallel-size %d\n--context-parallel-size %d\n"
      "--expert-model-parallel-size %d\n--pipeline-model-parallel-size %d\n",
      job.parallel.tp, job.parallel.cp, job.parallel.ep, partition.num_ranks);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string layout,
                            MegatronLayout(job, partition));
  text += MegatronDivision(job) + layout;
  if (trainer.order == PassOrder::kStock && partition.num_segments > 1) {
    absl::StrAppend(&text,
                    "--microbatch-group-size-per-virtual-pipeline-stage ",
                    schedule.group, "\n");
  }
  if (!recompute.is_none()) {
    const int32_t count =
        recompute.period > 0
            ? recompute.period
            : *std::max_element(recompute.first.begin(), recompute.first.end());
    absl::StrAppend(&text, "--recompute-granularity full\n",
                    "--recompute-method ",
                    recompute.period > 0 ? "uniform" : "block",
                    "\n--recompute-num-layers ", count, "\n");
  }
  absl::StrAppend(&text, "# microbatches of a step and replica: ");
  if (schedule.fewest_microbatches < schedule.most_microbatches) {
    absl::StrAppend(&text, schedule.fewest_microbatches, " to ",
                    schedule.most_microbatches,
                    "; call Megatron with as many as the plan has "
                    "(num_microbatches), else PlanRunner refuses it\n");
  } else {
    absl::StrAppend(&text, schedule.most_microbatches, "\n");
  }
  if (trainer.order == PassOrder::kAny && !file.empty()) {
    absl::StrAppend(&text,
                    "# executes the plan itself: "
                    "examples/megatron/plan_runner.py (PlanRunner)\n");
  }
  if (trainer.order == PassOrder::kStock && schedule.rows_differ) {
    text +=
        "# microbatches differ in rows: set "
        "TransformerConfig.variable_seq_lengths, which needs this dispatcher, "
        "or pad\n--moe-token-dispatcher-type alltoall\n";
  }
  return absl::StrCat(text, StageComments(job, partition));
}

std::string TorchtitanArguments(const JobSpec& job, const Partition& partition,
                                const RecomputeSetting& recompute,
                                const TrainerFile& schedule,
                                absl::string_view file) {
  const TrainerStageList list = StageList(job, partition);
  const bool vee =
      partition.num_segments == 2 && partition.num_ranks > 1 &&
      partition.stages[list[static_cast<size_t>(partition.num_ranks)].front()]
              .rank != RankId(0);
  std::vector<std::string> parts;
  for (const std::vector<StageId>& stage : list) {
    parts.push_back(
        absl::StrCat("  ", ModuleNames(job, partition, stage), ",\n"));
  }
  const bool plain = partition.num_ranks == 1;
  std::string pipeline;
  if (!plain) {
    pipeline = absl::StrCat(
        "# places the stages; the file, from the folder of this one, replaces "
        "its order\n"
        "pipeline_parallel_schedule = \"",
        vee ? "ZBVZeroBubble" : "Interleaved1F1B",
        "\"\npipeline_parallel_schedule_csv = \"", file,
        "\"\npipeline_parallel_microbatch_size = 1\n"
        "# lm_head is output in older versions\nmodule_fqns_per_model_part = "
        "[\n",
        absl::StrJoin(parts, ""), "]\n");
  }
  const int32_t count = schedule.most_microbatches;
  const FsdpSetting fsdp = FsdpOf(job);
  const int64_t length = SequenceLength(job.training);
  return absl::StrCat(
      OrderComment(job.parallel),
      "[parallelism]\ndata_parallel_replicate_degree = ", fsdp.replicate,
      "\ndata_parallel_shard_degree = ", fsdp.shard,
      "\nfsdp_reshard_after_forward = \"",
      fsdp.gathers_again ? "always" : "never",
      "\"\ntensor_parallel_degree = ", job.parallel.tp,
      "\nenable_sequence_parallel = ",
      job.setup.sequence_parallel ? "true" : "false",
      "\ncontext_parallel_degree = ", job.parallel.cp,
      "\nexpert_parallel_degree = ", job.parallel.ep,
      "\npipeline_parallel_degree = ", partition.num_ranks, "\n", pipeline,
      "\n[training]\n",
      length > 0 ? absl::StrCat("seq_len = ", length)
                 : "# seq_len is the length of the longest sample",
      "\n",
      plain ? absl::StrCat("# one rank has no pipeline: gradients accumulate\n"
                           "local_batch_size = 1\nglobal_batch_size = ",
                           count * job.parallel.dp)
            : absl::StrCat("local_batch_size = ", count),
      "\n\n[activation_checkpoint]\nmode = \"",
      recompute.is_none() ? "none" : "full", "\"\n");
}

// Says which layers of which stages are recomputed.
std::string FirstLayersText(const JobSpec& job, const Partition& partition,
                            const RecomputeSetting& recompute) {
  std::string text;
  const TrainerStageList list = StageList(job, partition);
  for (size_t i = 0; i < list.size(); ++i) {
    for (const StageId s : list[i]) {
      const Stage& stage = partition.stages[s];
      const int32_t all = NumRecomputable(stage, job.model);
      const int32_t count =
          recompute.period > 0 ? all : std::min(all, recompute.first[s]);
      if (count == 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", "(", i, ", \"",
                      job.model.modules[stage.module].name, "\", ", count, ")");
    }
  }
  return text;
}

std::string TorchArguments(const JobSpec& job, const Partition& partition,
                           const RecomputeSetting& recompute,
                           const TrainerFile& schedule,
                           absl::string_view file) {
  const TrainerStageList list = StageList(job, partition);
  std::vector<std::vector<size_t>> by_rank(
      static_cast<size_t>(partition.num_ranks));
  for (size_t i = 0; i < list.size(); ++i) {
    by_rank[static_cast<size_t>(partition.stages[list[i].front()].rank.value())]
        .push_back(i);
  }
  std::vector<std::string> ranks;
  for (const auto& stages : by_rank) {
    ranks.push_back(absl::StrCat("[", absl::StrJoin(stages, ", "), "]"));
  }
  return absl::StrCat(
      "# torch.distributed.pipelining: the stages of each rank, and the "
      "schedule\n",
      "STAGES_OF_RANK = [", absl::StrJoin(ranks, ", "), "]\n",
      "NUM_MICROBATCHES = ", schedule.most_microbatches, "\n",
      "# schedule = _PipelineScheduleRuntime(stages, NUM_MICROBATCHES, "
      "loss_fn)\n# schedule._load_csv(\"",
      file,
      "\")\n"
      "# (torch 2.6 needs stage_index_to_group_rank too, the rank of each "
      "stage)\n",
      "# (stage, module, n): its first n blocks are wrapped in "
      "torch.utils.checkpoint\nRECOMPUTE = [",
      recompute.is_none() ? "" : FirstLayersText(job, partition, recompute),
      "]\n", StageComments(job, partition));
}

std::string DeepSpeedArguments(const JobSpec& job, const Partition& partition,
                               const RecomputeSetting& recompute,
                               const TrainerFile& schedule) {
  std::vector<int32_t> parts = {0};
  for (const std::vector<StageId>& stage : StageList(job, partition)) {
    int32_t layers = parts.back();
    for (const StageId s : stage) layers += partition.stages[s].num_layers;
    parts.push_back(layers);
  }
  const ParallelLayout& layout = job.parallel;
  const bool divides =
      job.training.optimizer_sharding != OptimizerSharding::kNone;
  return absl::StrCat(
      OrderComment(layout),
      "# examples/deepspeed/plan_engine.py: stage i has layers [PARTS[i], "
      "PARTS[i + 1])\n"
      "# PlannedModule(layers, PARTS, num_stages=NUM_STAGES, "
      "dynamic_shape=DYNAMIC_SHAPE,\n"
      "#     activation_checkpoint_interval=ACTIVATION_CHECKPOINT_INTERVAL)\n",
      layout.tp == 1
          ? ""
          : absl::StrFormat(
                "# and topology=PipeModelDataParallelTopology(num_pp=NUM_STAGES"
                ", num_mp=%d, num_dp=%d)\n#     of "
                "deepspeed.runtime.pipe.topology; the layers divide themselves "
                "over their %d\n#     tensor-parallel GPUs%s\n",
                layout.tp, layout.dp, layout.tp,
                job.setup.sequence_parallel ? ", with sequence parallelism"
                                            : ", without sequence parallelism"),
      "NUM_STAGES = ", partition.num_ranks, "\nPARTS = [",
      absl::StrJoin(parts, ", "),
      "]\nDYNAMIC_SHAPE = ", schedule.rows_differ ? "True" : "False",
      "\nACTIVATION_CHECKPOINT_INTERVAL = ", recompute.period,
      recompute.is_none()
          ? ""
          : "\n# and checkpointable_layers=[the class of the blocks]: the plan "
            "keeps other layers",
      "\n# of the configuration\nGRADIENT_ACCUMULATION_STEPS = ",
      schedule.most_microbatches,
      "\nZERO_OPTIMIZATION = {\"stage\": ", divides ? 1 : 0, "}\n",
      StageComments(job, partition));
}

// Returns whether a stage sends tensors with different numbers of rows.
bool RowsDiffer(const ExecutionPlan& plan) {
  std::map<StageId, int64_t> rows;
  for (const Dependency& edge : plan.graph.edges()) {
    const Task& from = plan.graph.task(edge.from);
    if (from.pass != Pass::kForward || edge.rows == 0) continue;
    const auto seen = rows.try_emplace(from.stage, edge.rows).first;
    if (seen->second != edge.rows) return true;
  }
  return false;
}

// Returns a comment with the order in which a trainer takes a plan's
// microbatches; empty if they come as they are.
std::string OrderComment(const TrainerFile& file) {
  if (file.feed_order.empty()) return "";
  return absl::StrCat("# feed microbatches in the order ",
                      absl::StrJoin(file.feed_order, ","), "\n");
}

}  // namespace

absl::StatusOr<TrainerFile> ScheduleFileOf(const TrainerLimits& trainer,
                                           const ExecutionPlan& plan) {
  TrainerFile file;
  if (trainer.everything)
    return absl::InvalidArgumentError("no file is needed");
  file.rows_differ = RowsDiffer(plan);
  ActionOptions options;
  options.format = std::string(trainer.name);
  options.recompute_at_launch = true;
  if (trainer.order == PassOrder::kAny) {
    // The trainer executes the plan itself; its text is for people.
    for (const Task& task : plan.graph.tasks()) {
      file.most_microbatches =
          std::max(file.most_microbatches, task.microbatch.value() + 1);
      if (task.pass == Pass::kWeightGrad && !trainer.split_backward) {
        return absl::FailedPreconditionError(
            "the plan has weight gradients apart");
      }
    }
    file.fewest_microbatches = file.most_microbatches;
    return file;
  }
  PIPELOOM_ASSIGN_OR_RETURN(PlanActions actions, ActionsOf(plan, options));
  file.notes = std::move(actions.notes);
  file.most_microbatches = actions.shape.num_microbatches;
  file.fewest_microbatches = file.most_microbatches;
  if (!std::is_sorted(actions.microbatches.begin(),
                      actions.microbatches.end())) {
    file.feed_order = std::move(actions.microbatches);
  }
  if (trainer.split_backward) {
    file.extension = "csv";
    file.text = PrintTorchCsv(actions.table);
    return file;
  }
  MergeBackwards(&actions.table);
  if (trainer.order == PassOrder::kStock) {
    PIPELOOM_ASSIGN_OR_RETURN(const MegatronOrder order,
                              ToMegatronOrder(actions.table));
    if (order.group == 0) {
      return absl::FailedPreconditionError(
          "the plan is no stock schedule of Megatron-Core");
    }
    file.extension = "order";
    file.group = order.group;
    file.text = absl::StrCat(OrderComment(file), PrintMegatronOrder(order));
    return file;
  }
  PIPELOOM_ASSIGN_OR_RETURN(const DeepSpeedSteps steps,
                            ToDeepSpeed(actions.table));
  file.extension = "deepspeed";
  file.text = absl::StrCat(OrderComment(file), PrintDeepSpeed(steps));
  return file;
}

absl::StatusOr<std::string> LaunchArguments(const TrainerLimits& trainer,
                                            const JobSpec& job,
                                            const Partition& partition,
                                            const RecomputeSetting& recompute,
                                            const TrainerFile& schedule,
                                            absl::string_view file) {
  if (trainer.everything) return std::string();
  if (trainer.name == "torch") {
    return TorchArguments(job, partition, recompute, schedule, file);
  }
  if (trainer.name == "torchtitan") {
    return TorchtitanArguments(job, partition, recompute, schedule, file);
  }
  if (trainer.name == "deepspeed") {
    return DeepSpeedArguments(job, partition, recompute, schedule);
  }
  return MegatronArguments(trainer, job, partition, recompute, schedule, file);
}

}  // namespace pipeloom::adapters
