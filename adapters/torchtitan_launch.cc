#include "adapters/torchtitan_launch.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pipeloom::adapters {
namespace {

// Returns the names of modules as a trainer's model would have them: those of
// torchtitan's models, which splits a model by its own children and the items
// of those that are lists. Names of layers of all modules but the last begin
// with the name of their module.
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

// Returns what the length of a sequence is a multiple of.
int64_t LengthDivisor(const JobSpec& job) {
  const ParallelLayout& layout = job.parallel;
  return (layout.cp > 1 ? 2 * layout.cp : 1) *
         (job.setup.sequence_parallel ? layout.tp : 1);
}

absl::string_view PythonBool(bool value) { return value ? "True" : "False"; }

constexpr absl::string_view kHeader =
    R"(# Settings for torchtitan 0.3.0 and later. A function of yours, which
# `--config` names in the module of `--module`, returns them with another
# configuration:
#
#     import runpy
#     from torchtitan.models.llama3.config_registry import llama3_8b
#
#     def planned():
#         return runpy.run_path("PATH OF THIS FILE")["apply"](llama3_8b())
import dataclasses
import os

)";

constexpr absl::string_view kApply = R"(

def apply(config):
    """Returns a torchtitan configuration with the settings of the plan."""
    from torchtitan.distributed.activation_checkpoint import FullAC
    parallelism, training = dict(PARALLELISM), dict(TRAINING)
    if hasattr(config.parallelism, "num_pp_microbatches"):  # After 0.3.0.
        local = training.pop("local_batch_size")
        samples = training.pop("global_batch_size")
        tokens = training.pop("seq_len", config.training.max_context_length)
        if parallelism.pop("pipeline_parallel_microbatch_size", 0):
            parallelism["num_pp_microbatches"] = local
        training.update(max_context_length=tokens,
                        num_tokens_per_microbatch_per_dp_rank=tokens,
                        num_tokens_per_train_step=samples * tokens)
    return dataclasses.replace(
        config,
        parallelism=dataclasses.replace(config.parallelism, **parallelism),
        training=dataclasses.replace(config.training, **training),
        compile=dataclasses.replace(config.compile, **COMPILE),
        activation_checkpoint=FullAC.Config() if RECOMPUTE else None)
)";

}  // namespace

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
        absl::StrCat("        ", ModuleNames(job, partition, stage), ",\n"));
  }
  const bool plain = partition.num_ranks == 1;
  std::string pipeline;
  if (!plain) {
    pipeline = absl::StrCat(
        "    # Places the stages; the file replaces its order.\n"
        "    \"pipeline_parallel_schedule\": \"",
        vee ? "ZBVZeroBubble" : "Interleaved1F1B",
        "\",\n    \"pipeline_parallel_schedule_csv\": os.path.join(\n"
        "        os.path.dirname(os.path.abspath(__file__)), \"",
        file,
        "\"),\n    \"pipeline_parallel_microbatch_size\": 1,\n"
        "    \"module_fqns_per_model_part\": [\n",
        absl::StrJoin(parts, ""), "    ],\n");
  }
  const int32_t count = schedule.most_microbatches;
  const FsdpSetting fsdp = FsdpOf(job);
  const int64_t divisor = LengthDivisor(job);
  const int64_t length = SequenceLength(job.training, divisor);
  return absl::StrCat(
      kHeader, OrderComment(job.parallel),
      "PARALLELISM = {\n    \"data_parallel_replicate_degree\": ",
      fsdp.replicate, ",\n    \"data_parallel_shard_degree\": ", fsdp.shard,
      ",\n    \"fsdp_reshard_after_forward\": \"",
      fsdp.gathers_again ? "always" : "never",
      "\",\n    \"tensor_parallel_degree\": ", job.parallel.tp,
      ",\n    \"enable_sequence_parallel\": ",
      PythonBool(job.setup.sequence_parallel),
      ",\n    \"context_parallel_degree\": ", job.parallel.cp,
      ",\n    \"expert_parallel_degree\": ", job.parallel.ep,
      ",\n    \"pipeline_parallel_degree\": ", partition.num_ranks, ",\n",
      pipeline, "}\n", PaddingComment(job.training, divisor), "TRAINING = {\n",
      length > 0 ? absl::StrCat("    \"seq_len\": ", length, ",\n")
                 : "    # \"seq_len\" is the length of the longest sample.\n",
      plain ? absl::StrCat(
                  "    # One rank has no pipeline: gradients accumulate.\n"
                  "    \"local_batch_size\": 1,\n    \"global_batch_size\": ",
                  count * job.parallel.dp, ",\n")
            : absl::StrCat("    \"local_batch_size\": ", count,
                           ",\n    \"global_batch_size\": ",
                           count * job.parallel.dp, ",\n"),
      // torchtitan has graphs unless it is told otherwise, and refuses them
      // with a pipeline.
      "    \"disable_cuda_graphs\": ",
      PythonBool(!plain || job.setup.graphs == CudaGraphs::kNone), ",\n}\n",
      "COMPILE = {\"enable\": ", PythonBool(!job.setup.eager_pointwise),
      "}\nRECOMPUTE = ", PythonBool(!recompute.is_none()), "\n", kApply);
}

}  // namespace pipeloom::adapters
