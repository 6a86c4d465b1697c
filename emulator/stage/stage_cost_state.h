// The state of a StageCostModel, for the files that implement it.
#ifndef PIPELOOM_EMULATOR_STAGE_STAGE_COST_STATE_H_
#define PIPELOOM_EMULATOR_STAGE_STAGE_COST_STATE_H_

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/numeric.h"
#include "emulator/cost/copies_cost.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/cost/straggler.h"
#include "emulator/framework/attention_kernels.h"
#include "emulator/framework/framework_price.h"
#include "emulator/network/group_placement.h"
#include "emulator/network/ring_model.h"
#include "emulator/ops/layer_fingerprint.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/stage/cluster_view.h"
#include "emulator/stage/layer_memory.h"
#include "emulator/stage/layer_price.h"
#include "emulator/stage/layer_weights.h"
#include "emulator/stage/rank_update.h"
#include "emulator/stage/stage_cost_types.h"
#include "emulator/stage/subgraph_cache.h"

namespace pipeloom::emulator {

// In each of 16 shards; a service with new shapes at every step fills them. So
// many fit a hash map with 4,096 places, and all of a job take some 50 MB.
inline constexpr size_t kKeptPrices = 3584;
inline constexpr double kNoBytes = 1024;  // A collective that is all latency.
using LayerPrices = FingerprintCache<LayerCost, kKeptPrices>;

// The part that the models of all replicas share.
struct StageCostShared {
  StageCostShared(const JobSpec& a_job,
                  std::unique_ptr<const OpCostModel> a_costs, bool a_reuse)
      : job(a_job), reuse(a_reuse), costs(std::move(a_costs)) {
    if (costs == nullptr) {
      costs = MakeOpCosts(job.cluster, job.parallel, nullptr);
    }
    slowest = SlowestOf(job.setup.straggle, job.parallel.num_gpus());
    for (const ModuleId m : job.model.modules.ids()) {
      auto& prints = fingerprints[fingerprints.push_back({})];
      auto& placed = places[places.push_back({})];
      const IdVector<LayerId, LayerSpec>& layers = job.model.modules[m].layers;
      for (const LayerId l : layers.ids()) {
        prints.push_back(FingerprintOf(layers[l]));
        placed.push_back(
            FingerprintBuilder()
                .Add(m.value())
                .Add(prints[l])
                .Add(l.value() > 0 ? layers[LayerId(l.value() - 1)].hidden : 0)
                .Add(l.value() + 1 == layers.size())
                .Build());
      }
      frozen.push_back(job.IsFrozen(m));
      ModuleLayout own{.parallel = job.LayoutOf(m), .copies = job.CopiesOf(m)};
      // Copies that repeat the same work are updated each by itself.
      own.tensor_copies =
          own.copies > 1 ? job.parallel.tp / own.parallel.tp : 1;
      std::set<ModuleId> met;
      for (const ModuleEdge& edge : job.model.edges) {
        if (edge.from == m && own.copies * job.CopiesOf(edge.to) > 1) {
          met.insert(edge.to);
        }
      }
      own.regroups = static_cast<int32_t>(met.size());
      layouts.push_back(own);
    }
    ClusterViews made = ViewsOf(job);
    views = std::move(made.views);
    view_of_replica = std::move(made.of_replica);
  }

  struct ModuleLayout {
    ParallelLayout parallel{};
    int32_t copies = 1;  // Copies of a stage in a rank.
    // Copies of a weight in a tensor-parallel group.
    int32_t tensor_copies = 1;
    int32_t regroups = 0;  // Number of modules that take its output regrouped.
  };

  const JobSpec job;
  const bool reuse;
  std::unique_ptr<const OpCostModel> costs;
  double slowest = 1;  // Factor on passes: the slowest of all GPUs.
  IdVector<ModuleId, ModuleLayout> layouts{};
  IdVector<ModuleId, IdVector<LayerId, Fingerprint>> fingerprints{};
  // The same of layers with their module, what is ahead of them and whether
  // they are the module's last.
  IdVector<ModuleId, IdVector<LayerId, Fingerprint>> places{};
  IdVector<ModuleId, bool> frozen{};
  IdVector<ModuleId, PassFactors> corrections{};  // Empty: no corrections.
  mutable LayerPrices cache{};
  mutable FingerprintCache<StageCost, kKeptPrices> stages{};
  std::vector<ReplicaView> views{};
  std::vector<int32_t> view_of_replica{};
};

struct StageCostState {
  StageCostState(std::shared_ptr<StageCostShared> a_common,
                 const ReplicaView& a_view)
      : common(std::move(a_common)),
        job(common->job),
        view(a_view),
        cache(common->cache) {}

  Precision PrecisionOn(const ModuleSpec& module, RankId rank) const {
    const int32_t group = view.PlaceOf(rank).group;
    if (group < 0) return module.precision;
    return job.cluster.node_groups[static_cast<size_t>(group)]
        .precision.value_or(module.precision);
  }
  const OpCostModel& CostsOn(RankId rank) const {
    return common->costs->OnGroup(view.PlaceOf(rank).group);
  }
  const DeviceSpec& DeviceOn(RankId rank) const {
    return job.cluster.DeviceOf(view.PlaceOf(rank).group);
  }

  const ModuleSpec& ModuleOf(const Stage& stage) const {
    return job.model.modules[stage.module];
  }

  const StageCostShared::ModuleLayout& LayoutOf(const Stage& stage) const {
    return common->layouts[stage.module];
  }

  // Returns the fingerprint of all in a stage that Sum() depends on: stages of
  // equal prints cost the same on equal shapes.
  Fingerprint PrintOf(const Stage& stage) const {
    const auto& prints = common->places[stage.module];
    FingerprintBuilder builder;
    builder.Add(PrecisionOn(ModuleOf(stage), stage.rank))
        .Add(view.PlaceOf(stage.rank).group);
    const LayerId first = stage.first_layer;
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      builder.Add(prints[LayerId(first.value() + i)]);
    }
    return builder.Build();
  }

  // Returns the time to gather a tensor of `bytes` in all on every GPU of the
  // rank; what a GPU needs of it is then a part of what it has.
  Duration RegroupTime(double bytes, RankId rank) const {
    const ParallelLayout& parallel = job.parallel;
    return GatherTime(GroupKind::kTensor, parallel.tp, bytes / parallel.cp,
                      rank) +
           GatherTime(GroupKind::kContext, parallel.cp, bytes, rank);
  }

  // Returns the time of an all-gather of `bytes` in all.
  Duration GatherTime(GroupKind group, int32_t size, double bytes,
                      RankId rank) const {
    if (size == 1) return kZero;
    return CostsOn(rank).Cost(CollectiveOp{.kind = Collective::kAllGather,
                                           .group = group,
                                           .size = size,
                                           .bytes = bytes});
  }

  // Calls visit(layer) for each layer. A tied loss head on another stage than
  // its embedding holds a copy of the table.
  template <typename Visit>
  void ForEachLayer(const Stage& stage, const Visit& visit) const {
    bool has_table = false;
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const LayerSpec& layer =
          ModuleOf(stage).layers[LayerId(stage.first_layer.value() + i)];
      has_table |= layer.kind == LayerKind::kEmbedding;
      if (layer.tied && !has_table) {
        LayerSpec copy = layer;
        copy.tied = false;
        visit(copy);
      } else {
        visit(layer);
      }
    }
  }

  // Returns the trained tensors of the stage on one GPU. Adapters of a layer
  // count as one.
  LayerTensors TensorsOf(const Stage& stage) const {
    LayerTensors sum;
    const int64_t adapter_rank = ModuleOf(stage).adapter_rank;
    ForEachLayer(stage, [&](const LayerSpec& layer) {
      const ParallelLayout& parallel = LayoutOf(stage).parallel;
      if (adapter_rank > 0) {
        const int64_t own = TrainedOnGpu(layer, parallel, adapter_rank).dense;
        if (own > 0) sum.dense.Add({.matrices = 1, .largest = own});
        return;
      }
      const LayerTensors tensors = TensorsOnGpu(layer, parallel);
      sum.dense.Add(tensors.dense);
      sum.experts.Add(tensors.experts);
    });
    return sum;
  }
  // Returns the trained parameters of the stage on one GPU, and those of its
  // largest layer.
  ShardedParameters TrainedParameters(const Stage& stage,
                                      int64_t* largest = nullptr) const {
    return SumParameters(stage, ModuleOf(stage).adapter_rank, largest);
  }
  // Returns the same of all weights, without adapters.
  ShardedParameters StageParameters(const Stage& stage,
                                    int64_t* largest = nullptr) const {
    return SumParameters(stage, 0, largest);
  }
  ShardedParameters SumParameters(const Stage& stage, int64_t adapter_rank,
                                  int64_t* largest) const {
    ShardedParameters sum;
    if (largest != nullptr) *largest = 0;
    ForEachLayer(stage, [&](const LayerSpec& layer) {
      const ShardedParameters own =
          TrainedOnGpu(layer, LayoutOf(stage).parallel, adapter_rank);
      sum.dense += own.dense;
      sum.experts += own.experts;
      if (largest != nullptr) {
        *largest = std::max(*largest, own.dense + own.experts);
      }
    });
    return sum;
  }

  // Returns the bytes of parameters of `bytes` each, divided over the replicas
  // if the job shards at least `from`.
  Bytes Stored(const ShardedParameters& own, int64_t bytes,
               OptimizerSharding from, const ParallelLayout& parallel) const {
    if (job.training.optimizer_sharding < from) {
      return Bytes((own.dense + own.experts) * bytes);
    }
    return Bytes(CeilDiv(own.dense * bytes,
                         ShardsOf(DenseReplicas(parallel), job.setup)) +
                 CeilDiv(own.experts * bytes,
                         ShardsOf(ExpertReplicas(parallel), job.setup)));
  }
  // Returns how the weights of a stage are sharded. On a single replica nothing
  // is divided, gathered or reduced; shards in fp32 are cast nevertheless.
  OptimizerSharding ShardingOf(const ParallelLayout& parallel) const {
    const bool is_single =
        DenseReplicas(parallel) <= 1 && ExpertReplicas(parallel) <= 1;
    return is_single && !job.setup.fp32_shards
               ? OptimizerSharding::kNone
               : job.training.optimizer_sharding;
  }

  // Returns the number of collectives that reduce parameters of which
  // `replicas` GPUs hold the same.
  int32_t Buckets(int64_t parameters, int64_t replicas) const {
    return replicas <= 1 || job.setup.overlap == CommunicationOverlap::kNone
               ? 1
               : BucketsOf(parameters, replicas, job.setup.bucket_parameters);
  }

  // Returns whether whole tensors of the optimizer's state belong to one of
  // `shards` replicas each.
  bool HasOwners(int64_t shards) const {
    return job.setup.broadcasts_weights && shards > 1 &&
           job.training.optimizer_sharding == OptimizerSharding::kZero1;
  }
  // Returns the waits of the owners' broadcasts over `shards` replicas for
  // their first blocks. Owners of matrices come first, those who have vectors
  // only next; each begins when the last one's tensors have arrived.
  Duration BroadcastWaits(const TensorCount& tensors, double parameters,
                          GroupKind group, int64_t shards) const {
    const CollectiveOp op{
        .kind = Collective::kAllGather, .group = group, .size = shards};
    const RingGroup ring{
        .ranks = shards,
        .ranks_per_node = GroupInNode(job.cluster, job.parallel, op)};
    const RingLinks links{
        .node_bytes_per_second =
            job.cluster.intra_node.bandwidth.bytes_per_second,
        .nic_bytes_per_second =
            job.cluster.inter_node.bandwidth.bytes_per_second};
    const int64_t matrices = std::min(tensors.matrices, shards);
    const int64_t vectors = std::min(tensors.vectors, shards - matrices);
    const double bytes = parameters * Real(job.setup.weight_bytes) /
                         Real(std::max<int64_t>(matrices, 1));
    const double own_vector = Real(job.setup.weight_bytes);  // At least.
    return Seconds(Real(matrices) * BroadcastWaitSeconds(bytes, ring, links) +
                   Real(vectors) *
                       BroadcastWaitSeconds(own_vector, ring, links));
  }

  // Adds reduction, optimizer step and gather of parameters that `replicas`
  // GPUs hold alike to an update of the rank.
  void AddUpdate(int64_t parameters, const TensorCount& tensors,
                 Precision precision, GroupKind group, int64_t replicas,
                 int32_t tensor_copies, RankId rank, RankUpdate* update) const {
    if (parameters == 0) return;
    const OpCostModel& costs = CostsOn(rank);
    const OptimizerSharding sharding = job.training.optimizer_sharding;
    const ParameterBytes bytes = BytesOf(precision);
    const double count = Real(parameters);
    const double gradients = Real(GradientBytes(precision, job.setup));
    const int64_t shards = sharding == OptimizerSharding::kNone
                               ? 1
                               : ShardsOf(replicas, job.setup);
    const auto among = [&](int64_t members, Collective kind, double size) {
      return OverReplicas(
          costs, {.kind = kind, .group = group, .size = members, .bytes = size},
          tensor_copies);
    };
    const auto collective = [&](Collective kind, double size) {
      return among(replicas, kind, size);
    };
    // Each bucket is a collective of its own, which has to start.
    const int32_t buckets = Buckets(parameters, replicas);
    const Duration starts =
        buckets == 1
            ? kZero
            : (buckets - 1) * collective(Collective::kAllGather, kNoBytes);
    if (sharding < OptimizerSharding::kZero2) {
      update->reduce +=
          starts + collective(Collective::kReduceScatter, count * gradients);
    }
    const bool has_owners = HasOwners(shards);
    // Each copy of the state needs the whole sum; with ZeRO-2, passes reduce.
    if (sharding < OptimizerSharding::kZero2 &&
        (shards < replicas || has_owners)) {
      update->reduce += collective(Collective::kAllGather, count * gradients);
    }
    if (shards > 1 && sharding < OptimizerSharding::kZero3) {
      update->gather += starts + among(shards, Collective::kAllGather,
                                       count * (precision == Precision::kFp32
                                                    ? 4
                                                    : job.setup.weight_bytes));
    }
    if (has_owners) {
      update->gather += BroadcastWaits(tensors, count, group, shards);
    }
    // Read: gradient, fp32 weight, moments. Written: the last two of them and
    // the weight that products read. Without an fp32 weight the 16-bit one is
    // read instead, and the gradient is in 16 bits too.
    const double state = precision == Precision::kBf16
                             ? Real(job.setup.optimizer_bytes)
                             : Real(bytes.optimizer);
    const bool has_copy =
        precision == Precision::kFp32 || HasFp32Weights(job.setup);
    const double summed = has_copy ? Real(bytes.gradients) : gradients;
    const double weight = precision == Precision::kFp32 ? 0 : has_copy ? 2 : 4;
    const bool eager_owners = has_owners && job.setup.eager_pointwise;
    const double traffic =
        eager_owners ? kEagerOwnerBytes
                     : summed + 2 * state + weight +
                           kNormAndClearBytes * summed / Real(bytes.gradients);
    // The fullest owner has at least the largest tensor.
    const double updated = std::max(count / Real(shards),
                                    has_owners ? Real(tensors.largest) : 0.0);
    update->optimizer +=
        Slowed(costs.Cost(MemoryOp{.bytes = updated * traffic,
                                   .kind = MemoryKind::kOptimizer,
                                   .rows = updated,
                                   .width = 1}),
               view.PlaceOf(rank).slow);
    // Gradients that are not sharded are cleared as a whole on each GPU.
    if (eager_owners) {
      AddTraffic(count * kBucketCopyBytes, rank, update);
    } else if (sharding == OptimizerSharding::kZero1 && shards > 1) {
      AddTraffic(count * gradients * (1 - 1 / Real(shards)), rank, update);
    }
  }
  // Adds a kernel of `bytes` to the optimizer step of a rank.
  void AddTraffic(double bytes, RankId rank, RankUpdate* update) const {
    if (bytes <= 0) return;
    update->optimizer += Slowed(
        CostsOn(rank).Cost(MemoryOp{.bytes = bytes, .rows = bytes, .width = 1}),
        view.PlaceOf(rank).slow);
  }
  // Returns the bytes of casting a stage's weights for low-precision products,
  // once they were gathered; those gathered as fp8 were cast by their owners.
  double CastBytes(const Stage& stage) const {
    if (!job.setup.fp8_products || job.setup.weight_bytes < 2 ||
        PrecisionOn(ModuleOf(stage), stage.rank) != Precision::kBf16 ||
        ModuleOf(stage).adapter_rank > 0 ||
        ShardingOf(LayoutOf(stage).parallel) == OptimizerSharding::kZero3) {
      return 0;
    }
    const ParallelLayout& parallel = LayoutOf(stage).parallel;
    int64_t elements = 0;
    ForEachLayer(stage, [&](const LayerSpec& layer) {
      elements += CastParameters(layer, parallel);
    });
    return kWeightCastBytes * Real(elements);
  }

  // Returns the FLOPs of a layer's adapters, forward and both gradients, on all
  // GPUs.
  static Flops AdapterFlops(const LayerSpec& layer, const WorkShape& shape,
                            int64_t adapter_rank) {
    constexpr double kPasses = 3;
    const ShardedParameters own =
        TrainedOnGpu(layer, ParallelLayout{}, adapter_rank);
    return Flops{kPasses * 2 * Real(own.dense) *
                 Real(LayerTokens(layer, shape))};
  }

  // Returns the cost of the stage's layers one after another, before
  // corrections.
  StageCost Sum(const Stage& stage, const WorkShape& shape,
                const Fingerprint& shape_print, bool needs_input_grad,
                Precision precision, double attention_density) const {
    const ModuleSpec& module = ModuleOf(stage);
    const int32_t group = view.PlaceOf(stage.rank).group;
    const StageCostShared::ModuleLayout& layout = LayoutOf(stage);
    const WorkShape own = LargestShare(shape, layout.copies);
    const LayerSetting setting{
        .parallel = layout.parallel,
        .copies = layout.copies,
        .tensor_copies = layout.tensor_copies,
        .costs = CostsOn(stage.rank),
        .sharding = ShardingOf(layout.parallel),
        .options = {.precision = precision,
                    .attention_density = attention_density,
                    .dispatch = job.setup.dispatch,
                    // A GPU with all experts gets what all of them get.
                    .expert_imbalance =
                        layout.parallel.ep > 1 ? job.setup.expert_imbalance : 1,
                    .fused_experts = job.setup.fused_experts,
                    .fp8_attention =
                        RunsFp8Attention(job.setup, DeviceOn(stage.rank)),
                    .adapter_rank = module.adapter_rank},
        .setup = job.setup,
        .cluster = job.cluster,
        .device = DeviceOn(stage.rank),
        // A step begins with forwards of as many microbatches as there are
        // ranks, in the mean over these, and ends with as many backwards.
        .microbatches = {
            .alone = std::min(
                1.0, Real(job.parallel.pp) / Real(job.training.microbatches)),
            .packed = job.model.modules.size() > 1}};
    const ParallelLayout& parallel = layout.parallel;
    const bool trained = !common->frozen[stage.module];
    StageCost total;
    Fingerprint last_key{};
    LayerCost cost{};
    int64_t repeated = 0;
    Flops forward_flops{};
    Flops more_flops{};  // With adapters: backward, and all of the adapters.
    // Without sequence parallelism every GPU has all of a layer's input.
    const auto input_of = [&](LayerId id) {
      const int64_t width_before =
          id.value() > 0 ? module.layers[LayerId(id.value() - 1)].hidden : 0;
      return (job.setup.sequence_parallel ? 1 : parallel.tp) *
             InputBytes(module.layers[id], own, width_before, parallel,
                        precision);
    };
    ScratchOfLayers scratch;
    const bool makes_gradients =
        trained && module.adapter_rank == 0 && MakesGradients(job);
    const int64_t gradient_bytes = precision == Precision::kBf16
                                       ? SummedGradientBytes(job.setup)
                                       : BytesOf(precision).gradients;
    bool above_trained = needs_input_grad;
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const LayerId id(stage.first_layer.value() + i);
      const GradientNeeds needs{
          .weights = trained && (module.adapter_rank == 0 ||
                                 HasAdapters(module.layers[id])),
          .input = above_trained};
      above_trained |= needs.weights;
      const auto price = [&] {
        return PriceLayer(module.layers[id], shape, own, needs, setting);
      };
      if (common->reuse) {
        const Fingerprint key = FingerprintBuilder()
                                    .Add(common->fingerprints[stage.module][id])
                                    .Add(shape_print)
                                    .Add(needs.weights)
                                    .Add(needs.input)
                                    .Add(precision)
                                    .Add(group)
                                    .Add(attention_density)
                                    .Add(module.adapter_rank)
                                    .Add(parallel.tp)
                                    .Add(parallel.cp)
                                    .Build();
        if (i > 0 && key == last_key) {
          ++repeated;
        } else {
          cost = cache.Get(key, price);
        }
        last_key = key;
      } else {
        cost = price();
      }
      total.forward += cost.forward;
      total.forward_again += cost.forward_again;
      total.backward += cost.backward;
      total.weight_grad += cost.weight_grad;
      total.fused += cost.fused;
      total.backward_gap += cost.backward_gap;
      total.fused_gap += cost.fused_gap;
      total.forward_gap += cost.forward_gap;
      total.forward_compute += cost.forward_compute;
      total.backward_compute += cost.backward_compute;
      total.fused_compute += cost.fused_compute;
      total.activations += cost.activations;
      total.freed_by_backward += cost.freed_by_backward;
      scratch.Add(input_of(id), cost.activations, cost.freed_by_backward,
                  cost.scratch);
      if (makes_gradients) {
        const MadeGradients made =
            GradientsMadeBy(module, id, parallel, gradient_bytes);
        total.made.held += made.held;
        total.made.scratch = std::max(total.made.scratch, made.scratch);
      }
      for (size_t g = 0; g < total.groups.size(); ++g) {
        total.groups[g].again += cost.groups[g].again;
        total.groups[g].bytes += cost.groups[g].bytes;
      }
      forward_flops += cost.forward_flops;
      if (module.adapter_rank > 0 && (needs.weights || needs.input)) {
        // Frozen weights have the gradient of their input alone.
        more_flops += cost.forward_flops;
        if (needs.weights) {
          more_flops +=
              AdapterFlops(module.layers[id], shape, module.adapter_rank);
        }
      }
    }
    total.scratch = scratch.Get();
    cache.CountHits(repeated);
    if (!common->reuse) cache.CountMisses(stage.num_layers);

    if (trained && module.adapter_rank > 0) {
      total.model_flops = forward_flops + more_flops;
    } else {
      const double passes = trained ? 3 : needs_input_grad ? 2 : 1;
      total.model_flops = forward_flops * passes;
    }

    const LayerId first = stage.first_layer;
    const LayerId last(first.value() + stage.num_layers - 1);
    total.input = std::min(input_of(first), total.activations);

    const LayerSpec& end = module.layers[last];
    const bool hands_on = last.value() + 1 == module.layers.size();
    const auto rows_of = [&](const WorkShape& work) {
      return hands_on && module.role == ModuleRole::kEncoder &&
                     work.output_tokens > 0
                 ? work.output_tokens
                 : LayerTokens(end, work);
    };
    total.output_rows = rows_of(shape);
    total.output_width = end.hidden;
    const int64_t row_bytes =
        total.output_width * (precision == Precision::kFp32 ? 4 : 2);
    // Between stages of a module each copy hands on its own output; what other
    // modules take is spread evenly over all GPUs of the rank. Without sequence
    // parallelism each tensor-parallel GPU hands on all of it.
    const int64_t sent_copies =
        job.setup.sequence_parallel || job.setup.scattered_sends ? 1
                                                                 : parallel.tp;
    const int64_t rows = hands_on ? total.output_rows : rows_of(own);
    const int64_t parts =
        hands_on ? job.parallel.gpus_per_rank() : parallel.gpus_per_rank();
    total.output = Bytes(CeilDiv(rows * row_bytes * sent_copies, parts));
    if (hands_on && layout.regroups > 0) {
      const Duration time =
          layout.regroups *
          RegroupTime(Real(total.output_rows * row_bytes), stage.rank);
      total.forward += time;
      if (trained || needs_input_grad) {
        for (Duration* pass : {&total.backward, &total.backward_gap,
                               &total.fused, &total.fused_gap}) {
          *pass += time;
        }
      }
    }
    return total;
  }

  static Duration Slowed(Duration time, double factor) {
    if (factor == 1) return time;
    return Nanoseconds(std::llround(Real(time.count()) * factor));
  }

  const std::shared_ptr<StageCostShared> common;
  const JobSpec& job;
  const ReplicaView& view;
  LayerPrices& cache;
  // Models of the other views; only the first model has them.
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_STAGE_COST_STATE_H_
