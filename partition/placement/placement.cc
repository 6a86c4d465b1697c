#include "partition/placement/placement.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/batching/typical_work.h"
#include "partition/placement/layer_chain.h"
#include "partition/placement/recipe.h"

namespace pipeloom::partition {
namespace {

int64_t WeightOf(const LayerSpec& layer, LayerWeight weight) {
  if (layer.kind == LayerKind::kEmbedding) return 0;
  if (weight == LayerWeight::kCount) {
    return layer.kind == LayerKind::kTransformer ||
                   layer.kind == LayerKind::kFixedWork
               ? 1
               : 0;
  }
  return ParameterWeight(layer);
}

IdVector<LayerId, int64_t> WeightsOf(const ModuleSpec& module,
                                     LayerWeight weight) {
  IdVector<LayerId, int64_t> weights(module.layers.size());
  for (const LayerId id : weights.ids()) {
    weights[id] = WeightOf(module.layers[id], weight);
  }
  return weights;
}

}  // namespace

absl::StatusOr<Partition> ConcatenatedPartition(const JobSpec& job,
                                                int32_t chunks,
                                                LayerWeight weight) {
  // More chunks than any model has layers.
  constexpr int32_t kMaxChunks = 10'000;
  if (chunks < 1 || chunks > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "chunks is %d; it must be in [1, %d]", chunks, kMaxChunks));
  }
  const auto units_of = [&](bool glue_loss_head) {
    std::vector<LayerUnit> units;
    for (const ModuleId m : job.model.modules.ids()) {
      const ModuleSpec& module = job.model.modules[m];
      AppendUnits(m, module, WeightsOf(module, weight), glue_loss_head, &units);
    }
    return units;
  };
  const int64_t runs = int64_t{job.parallel.pp} * chunks;
  std::vector<LayerUnit> units = units_of(/*glue_loss_head=*/false);
  if (static_cast<int64_t>(units.size()) < runs) {
    units = units_of(/*glue_loss_head=*/true);
  }
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  AppendStages(
      units,
      static_cast<int32_t>(std::min(runs, static_cast<int64_t>(units.size()))),
      &partition);
  return partition;
}

absl::StatusOr<Partition> SeparatedPartition(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& sample) {
  PIPELOOM_ASSIGN_OR_RETURN(const PartitionBuilder builder,
                            PartitionBuilder::Create(job, costs, sample));
  PIPELOOM_ASSIGN_OR_RETURN(const PartitionRecipe recipe,
                            builder.FeasibleRule());
  return builder.Build(recipe);
}

}  // namespace pipeloom::partition
