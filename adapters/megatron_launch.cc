#include "adapters/megatron_launch.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "adapters/launch_parts.h"
#include "adapters/megatron_layout.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

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
    return absl::StrCat(
        "# stages in the pattern need Megatron-Core 0.17, their recomputation "
        "0.18\n--hybrid-layer-pattern \"",
        absl::StrJoin(hybrid, "|"), "\"\n", comments);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const auto symbols, MegatronLayoutOf(layers));
  const std::string text = PrintMegatronLayout(symbols);
  PIPELOOM_RETURN_IF_ERROR(
      ParseMegatronLayout(text, partition.num_ranks).status());
  return absl::StrCat("--num-layers ", all,
                      "\n--pipeline-model-parallel-layout \"", text, "\"\n",
                      comments);
}

// Returns whether the trainer can have pipeline ranks on neighbouring GPUs. It
// stops at its start unless experts are replicated as often as other layers,
// whether the model has experts or not.
bool HasPipelineInside(const ParallelLayout& layout) {
  return layout.expert_gpus() == layout.gpus_per_rank();
}

// Returns what the length of a sequence is a multiple of: context parallelism
// gives each GPU two pieces, sequence parallelism divides these.
int64_t LengthDivisor(const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  return (layout.cp > 1 ? 2 * layout.cp : 1) *
         (job.setup.sequence_parallel ? layout.tp : 1);
}

int64_t LengthOf(const JobSpec& job) {
  return SequenceLength(job.training, LengthDivisor(job));
}

// Returns the microbatches of a step over all replicas.
int64_t BatchesOf(const JobSpec& job, const TrainerFile& schedule) {
  return int64_t{1} * schedule.most_microbatches * job.parallel.dp;
}

// Returns the arguments that divide the work of a rank's GPUs, and the state of
// those that hold the same weights, and that place the GPUs.
std::string MegatronDivision(const JobSpec& job, const TrainerFile& schedule) {
  const ParallelLayout& layout = job.parallel;
  std::string text;
  if (HasPipelineInside(layout)) {
    if (RanksAreNeighbours(layout)) text += "--use-tp-pp-dp-mapping\n";
  } else {
    text += OrderComment(layout);
  }
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
  if (layout.gpus_per_rank() > 1) {
    text +=
        "# before Blackwell, these want CUDA_DEVICE_MAX_CONNECTIONS=1 in the "
        "environment\n";
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
  const int64_t length = LengthOf(job);
  if (length > 0) {
    absl::StrAppend(&text, PaddingComment(job.training, LengthDivisor(job)),
                    "--micro-batch-size 1\n--seq-length ", length, "\n");
    if (schedule.fewest_microbatches == schedule.most_microbatches) {
      absl::StrAppend(&text, "--global-batch-size ", BatchesOf(job, schedule),
                      "\n");
    }
  }
  return text;
}

// Returns a comment if the step was predicted with a loss that Megatron-LM does
// not have by itself. There is no argument for it: Megatron-LM has refused
// "--cross-entropy-fusion-impl te" since 2026.
std::string LossComment(const JobSpec& job) {
  const ModuleSpec& last = LastModule(job);
  const LayerId end(last.layers.size() - 1);
  if (job.setup.fp32_loss || last.layers[end].kind != LayerKind::kLossHead) {
    return "";
  }
  return "# the prediction has Transformer Engine's loss "
         "(--cross-entropy-loss-fusion\n# --cross-entropy-fusion-impl te), "
         "which newer Megatron-LM refuses; its own holds\n# 4 bytes more for "
         "each logit of a GPU: \"setup\": {\"fp32_loss\": true} plans with "
         "it\n";
}

// Returns the arguments of the settings with which the step was predicted and
// that Megatron-LM does not have by itself.
std::string MegatronSettings(const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  const TrainingSetup& setup = job.setup;
  const Precision precision = LastModule(job).precision;
  std::string text = precision == Precision::kFp32 ? "" : "--bf16\n";
  const bool shards =
      job.training.optimizer_sharding != OptimizerSharding::kNone;
  if (layout.dp * layout.cp > 1) {
    if (setup.gradient_bytes == 2) text += "--grad-reduce-in-bf16\n";
    if (setup.overlap != CommunicationOverlap::kNone) {
      text += "--overlap-grad-reduce\n";
      if (shards && !setup.gathers_wait) text += "--overlap-param-gather\n";
    }
  }
  if (setup.overlap == CommunicationOverlap::kAll && layout.tp > 1 &&
      setup.sequence_parallel) {
    text += "--tp-comm-overlap\n";
  }
  if (setup.fp8_products || precision == Precision::kFp8) {
    switch (setup.fp8_recipe) {
      case Fp8Recipe::kTensor:
        text += "--fp8-format hybrid\n";
        break;
      case Fp8Recipe::kBlocks:
        text += "--fp8-format e4m3\n--fp8-recipe mxfp8\n";
        break;
      case Fp8Recipe::kFp4:
      case Fp8Recipe::kFp4Plain:
        text += "--fp4-format e2m1\n--fp4-recipe nvfp4\n";
        break;
    }
  }
  text += LossComment(job);
  if (HasExperts(LastModule(job))) {
    text += "--moe-grouped-gemm\n";
    if (layout.ep > 1) {
      text += setup.dispatch == ExpertDispatch::kEachGpu
                  ? "--moe-token-dispatcher-type flex\n"
                  : "--moe-token-dispatcher-type alltoall\n";
    }
  }
  return text;
}

}  // namespace

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
  text += MegatronDivision(job, schedule) + MegatronSettings(job) + layout;
  if (trainer.order == PassOrder::kStock && partition.num_segments > 1) {
    absl::StrAppend(&text,
                    "--microbatch-group-size-per-virtual-pipeline-stage ",
                    schedule.group, "\n");
  }
  if (recompute.is_none()) {
    if (job.setup.recompute_attention) {
      text +=
          "--recompute-granularity selective\n--recompute-modules core_attn\n";
    }
  } else {
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
    absl::StrAppend(
        &text, schedule.most_microbatches,
        LengthOf(job) > 0
            ? "\n"
            : absl::StrCat("; --global-batch-size is the micro-batch size x ",
                           BatchesOf(job, schedule), "\n"));
  }
  if (trainer.order == PassOrder::kAny && !file.empty()) {
    absl::StrAppend(&text,
                    "# executes the plan itself: "
                    "examples/megatron/plan_runner.py (PlanRunner)\n");
  }
  if (trainer.order == PassOrder::kStock && schedule.rows_differ) {
    text +=
        "# microbatches differ in rows: set "
        "TransformerConfig.variable_seq_lengths, or pad\n";
    if (!HasExperts(LastModule(job)) || job.parallel.ep == 1) {
      text +=
          "# It needs this dispatcher.\n--moe-token-dispatcher-type alltoall\n";
    }
  }
  return absl::StrCat(text, StageComments(job, partition));
}

}  // namespace pipeloom::adapters
