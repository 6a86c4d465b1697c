#include "emulator/rank_update.h"

#include "emulator/layer_weights.h"
#include "emulator/op_graph.h"

namespace pipeloom::emulator {
namespace {

ShardedParameters ParametersOf(const JobSpec& job, const Stage& stage) {
  const ModuleSpec& module = job.model.modules[stage.module];
  ShardedParameters sum;
  bool has_table = false;
  for (int32_t i = 0; i < stage.num_layers; ++i) {
    LayerSpec layer = module.layers[LayerId(stage.first_layer.value() + i)];
    has_table |= layer.kind == LayerKind::kEmbedding;
    // A tied loss head away from its embedding holds a copy of the table.
    if (layer.tied && !has_table) layer.tied = false;
    const ShardedParameters own = ParametersOnGpu(layer, job.parallel);
    sum.dense += own.dense;
    sum.experts += own.experts;
  }
  return sum;
}

class Updates {
 public:
  Updates(const JobSpec& job, const OpCostModel& costs)
      : job_(job), costs_(costs) {}

  void Add(int64_t parameters, Precision precision, GroupKind group,
           int64_t replicas, RankUpdate* update) const {
    if (parameters == 0) return;
    const OptimizerSharding sharding = job_.training.optimizer_sharding;
    const ParameterBytes bytes = BytesOf(precision);
    const auto count = static_cast<double>(parameters);
    const auto gradients = static_cast<double>(bytes.gradients);
    const auto collective = [&](Collective kind, double size) {
      return costs_.Cost(CollectiveOp{
          .kind = kind, .group = group, .size = replicas, .bytes = size});
    };
    if (sharding < OptimizerSharding::kZero2) {
      update->reduce +=
          collective(Collective::kReduceScatter, count * gradients);
    }
    if (sharding < OptimizerSharding::kZero3) {
      update->gather +=
          collective(Collective::kAllGather,
                     count * (sharding == OptimizerSharding::kNone ? gradients
                              : precision == Precision::kFp32      ? 4
                                                                   : 2));
    }
    const double shards = sharding == OptimizerSharding::kNone
                              ? 1
                              : static_cast<double>(replicas);
    const double traffic =
        gradients + 12 + 12 + (precision == Precision::kFp32 ? 0 : 2);
    update->optimizer += costs_.Cost(MemoryOp{.bytes = count / shards * traffic,
                                              .kind = MemoryKind::kOptimizer,
                                              .rows = count / shards,
                                              .width = 1});
  }

 private:
  const JobSpec& job_;
  const OpCostModel& costs_;
};

}  // namespace

IdVector<RankId, RankUpdate> UpdatesOf(const JobSpec& job,
                                       const Partition& partition,
                                       const OpCostModel& costs) {
  const Updates updates(job, costs);
  IdVector<RankId, RankUpdate> all(partition.num_ranks);
  for (const Precision precision :
       {Precision::kBf16, Precision::kFp8, Precision::kFp32}) {
    IdVector<RankId, ShardedParameters> sums(partition.num_ranks);
    for (const StageId s : partition.stages.ids()) {
      const Stage& stage = partition.stages[s];
      if (job.IsFrozen(stage.module) ||
          job.model.modules[stage.module].precision != precision) {
        continue;
      }
      const ShardedParameters own = ParametersOf(job, stage);
      sums[stage.rank].dense += own.dense;
      sums[stage.rank].experts += own.experts;
      if (own.dense + own.experts > 0) {
        all[stage.rank].parts.push_back({s, own.dense + own.experts});
      }
    }
    for (const RankId r : all.ids()) {
      updates.Add(sums[r].dense, precision, GroupKind::kData,
                  DenseReplicas(job.parallel), &all[r]);
      updates.Add(sums[r].experts, precision, GroupKind::kExpertData,
                  ExpertReplicas(job.parallel), &all[r]);
    }
  }
  return all;
}

}  // namespace pipeloom::emulator
