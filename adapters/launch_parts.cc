#include "adapters/launch_parts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ir/plan/trainer.h"

namespace pipeloom::adapters {
namespace {

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

}  // namespace

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

const ModuleSpec& LastModule(const JobSpec& job) {
  return job.model.modules[ModuleId(job.model.modules.size() - 1)];
}

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

int64_t SequenceLength(const TrainingSpec& training, int64_t divisor) {
  if (training.batching != SequenceBatching::kPacked ||
      training.microbatch_samples > 1) {
    return 0;
  }
  return (training.microbatch_tokens + divisor - 1) / divisor * divisor;
}

std::string PaddingComment(const TrainingSpec& training, int64_t divisor) {
  const int64_t length = SequenceLength(training, divisor);
  if (length == 0 || length == training.microbatch_tokens) return "";
  return absl::StrFormat(
      "# microbatch_tokens is %d; the trainer wants a multiple of %d: padded\n",
      training.microbatch_tokens, divisor);
}

bool RanksAreNeighbours(const ParallelLayout& layout) {
  return layout.order == GpuOrder::kPipelineInside && layout.pp > 1 &&
         layout.dp > 1;
}

std::string OrderComment(const ParallelLayout& layout) {
  return RanksAreNeighbours(layout)
             ? "# the prediction is for pipeline ranks on neighbouring GPUs; "
               "the trainer has\n# replicas there: plan with "
               "parallel.gpu_order=GPU_ORDER_REPLICAS_INSIDE\n"
             : "";
}

}  // namespace pipeloom::adapters
