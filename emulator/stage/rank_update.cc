#include "emulator/stage/rank_update.h"

#include <algorithm>
#include <cmath>

#include "emulator/cost/framework_price.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/cluster_view.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {
namespace {

ShardedParameters ParametersOf(const JobSpec& job, const Stage& stage) {
  const ModuleSpec& module = job.model.modules[stage.module];
  ShardedParameters sum;
  bool has_table = false;
  for (int32_t i = 0; i < stage.num_layers; ++i) {
    LayerSpec layer = module.layers[LayerId(stage.first_layer.value() + i)];
    has_table |= layer.kind == LayerKind::kEmbedding;
    // A tied loss head on another stage than its embedding holds a copy of the
    // table.
    if (layer.tied && !has_table) layer.tied = false;
    const ShardedParameters own =
        TrainedOnGpu(layer, job.parallel, module.adapter_rank);
    sum.dense += own.dense;
    sum.experts += own.experts;
  }
  return sum;
}

class Updates {
 public:
  Updates(const JobSpec& job, const OpCostModel& costs, double slow)
      : job_(job), costs_(costs), slow_(slow) {}

  void Add(int64_t parameters, Precision precision, GroupKind group,
           int64_t replicas, RankUpdate* update) const {
    if (parameters == 0) return;
    const OptimizerSharding sharding = job_.training.optimizer_sharding;
    const ParameterBytes bytes = BytesOf(precision);
    const auto count = static_cast<double>(parameters);
    const auto gradients =
        static_cast<double>(GradientBytes(precision, job_.setup));
    const auto collective = [&](Collective kind, double size) {
      return costs_.Cost(CollectiveOp{
          .kind = kind, .group = group, .size = replicas, .bytes = size});
    };
    if (sharding < OptimizerSharding::kZero2) {
      const Duration reduce =
          collective(Collective::kReduceScatter, count * gradients);
      update->reduce += reduce;
      update->shown_reduce += ShownOverReplicas(reduce, job_.setup);
    }
    if (sharding < OptimizerSharding::kZero3) {
      const Duration gather = collective(
          Collective::kAllGather,
          count * (sharding == OptimizerSharding::kNone ? gradients
                   : precision == Precision::kFp32      ? 4
                                                   : job_.setup.weight_bytes));
      update->whole_gather += gather;
      update->gather += ShownOverReplicas(gather, job_.setup);
    }
    const double shards = sharding == OptimizerSharding::kNone
                              ? 1
                              : static_cast<double>(replicas);
    const double traffic = static_cast<double>(bytes.gradients) + 12 + 12 +
                           (precision == Precision::kFp32 ? 0 : 2) +
                           kNormAndClearBytes;
    const Duration step =
        costs_.Cost(MemoryOp{.bytes = count / shards * traffic,
                             .kind = MemoryKind::kOptimizer,
                             .rows = count / shards,
                             .width = 1});
    update->optimizer += slow_ == 1
                             ? step
                             : Nanoseconds(std::llround(
                                   static_cast<double>(step.count()) * slow_));
  }

 private:
  const JobSpec& job_;
  const OpCostModel& costs_;
  double slow_;
};

Precision PrecisionOn(const JobSpec& job, const ReplicaView& view,
                      const Stage& stage) {
  const Precision own = job.model.modules[stage.module].precision;
  const int32_t group = view.PlaceOf(stage.rank).group;
  return group < 0 ? own
                   : job.cluster.node_groups[static_cast<size_t>(group)]
                         .precision.value_or(own);
}

// Returns the updates in the replicas of a view.
IdVector<RankId, RankUpdate> UpdatesIn(const ReplicaView& view,
                                       const JobSpec& job,
                                       const Partition& partition,
                                       const OpCostModel& costs) {
  IdVector<RankId, RankUpdate> all(partition.num_ranks);
  for (const Precision precision :
       {Precision::kBf16, Precision::kFp8, Precision::kFp32}) {
    IdVector<RankId, ShardedParameters> sums(partition.num_ranks);
    for (const StageId s : partition.stages.ids()) {
      const Stage& stage = partition.stages[s];
      if (job.IsFrozen(stage.module) ||
          PrecisionOn(job, view, stage) != precision) {
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
      const RankPlace place = view.PlaceOf(r);
      const Updates updates(job, costs.OnGroup(place.group), place.slow);
      updates.Add(sums[r].dense, precision, GroupKind::kData,
                  DenseReplicas(job.parallel), &all[r]);
      updates.Add(sums[r].experts, precision, GroupKind::kExpertData,
                  ExpertReplicas(job.parallel), &all[r]);
    }
  }
  return all;
}

}  // namespace

Duration BucketStarts(const JobSpec& job, const RankUpdate& update,
                      const OpCostModel& costs) {
  constexpr double kLeastBucket = 40e6;
  constexpr double kBucketAReplica = 1e6;
  constexpr double kNoBytes = 1024;  // A collective that is all latency.
  const int64_t replicas = DenseReplicas(job.parallel);
  double parameters = 0;
  for (const RankUpdate::Part& part : update.parts) {
    parameters += static_cast<double>(part.parameters);
  }
  if (replicas <= 1 || parameters <= 0) return kZero;
  const double buckets = std::ceil(
      parameters /
      std::max(kLeastBucket, kBucketAReplica * static_cast<double>(replicas)));
  const Duration start = costs.Cost(CollectiveOp{.kind = Collective::kAllGather,
                                                 .group = GroupKind::kData,
                                                 .size = replicas,
                                                 .bytes = kNoBytes});
  return Seconds((buckets - 1) * ToSeconds(start));
}

IdVector<RankId, RankUpdate> UpdatesOf(const JobSpec& job,
                                       const Partition& partition,
                                       const OpCostModel& costs) {
  const ClusterViews views = ViewsOf(job);
  IdVector<RankId, RankUpdate> all =
      UpdatesIn(views.views[0], job, partition, costs);
  for (size_t v = 1; v < views.views.size(); ++v) {
    const auto other = UpdatesIn(views.views[v], job, partition, costs);
    for (const RankId r : all.ids()) {
      all[r].reduce = std::max(all[r].reduce, other[r].reduce);
      all[r].optimizer = std::max(all[r].optimizer, other[r].optimizer);
      all[r].gather = std::max(all[r].gather, other[r].gather);
      all[r].whole_gather =
          std::max(all[r].whole_gather, other[r].whole_gather);
      all[r].shown_reduce =
          std::max(all[r].shown_reduce, other[r].shown_reduce);
    }
  }
  for (RankUpdate& update : all) {
    if (!update.parts.empty()) update.optimizer += job.setup.host_per_step;
  }
  if (job.setup.stretch == 1) return all;
  for (RankUpdate& update : all) {
    for (Duration* part :
         {&update.reduce, &update.shown_reduce, &update.optimizer,
          &update.gather, &update.whole_gather}) {
      *part = Seconds(ToSeconds(*part) * job.setup.stretch);
    }
  }
  return all;
}

}  // namespace pipeloom::emulator
