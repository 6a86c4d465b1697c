#include "emulator/stage_cost.h"

#include <algorithm>
#include <cmath>

#include "emulator/collective_cost.h"
#include "emulator/layer_fingerprint.h"
#include "emulator/layer_memory.h"
#include "emulator/op_graph.h"
#include "emulator/roofline_cost.h"
#include "emulator/subgraph_cache.h"

namespace pipeloom::emulator {
namespace {

// Context and loaded kernels, then allocator slack, communication buffers and
// workspaces of products: what an idle training process holds on an H800.
constexpr Bytes kContext{int64_t{1} << 30};
constexpr Bytes kWorkspace{int64_t{512} << 20};

// Per parameter (mixed precision with Adam).
constexpr int64_t kWeightBytes = 2;
constexpr int64_t kGradientBytes = 4;
constexpr int64_t kOptimizerBytes = 12;  // fp32 weight and two moments.
// Read: gradient, weight, moments. Written: weight, moments, 16-bit weight.
constexpr double kOptimizerTraffic = 4 + 12 + 12 + 2;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& shape,
                     const ParallelLayout& parallel, const GradientNeeds& needs,
                     const OpCostModel& costs) {
  const LayerOps ops = BuildLayerOps(layer, shape, parallel, needs);
  const LayerActivations kept = ActivationsOf(layer, shape, parallel);
  LayerCost cost;
  cost.forward = CostOf(ops.forward, costs);
  cost.backward = CostOf(ops.backward, costs);
  cost.weight_grad = CostOf(ops.weight_grad, costs);
  cost.activations = needs.weights ? kept.trained : kept.frozen;
  cost.freed_by_backward =
      needs.weights ? kept.trained - kept.held_for_weight_grad : kept.frozen;
  cost.forward_flops = ops.forward_flops;
  return cost;
}

}  // namespace

struct StageCostModel::State {
  State(const JobSpec& a_job, bool a_reuse)
      : job(a_job), reuse(a_reuse), costs(job.cluster, job.parallel) {
    for (const ModuleSpec& module : job.model.modules) {
      auto& prints = fingerprints[fingerprints.push_back({})];
      for (const LayerSpec& layer : module.layers) {
        prints.push_back(FingerprintOf(layer));
      }
    }
  }

  // What the stage's weights are on one GPU. A tied loss head away from its
  // embedding holds a copy of the table.
  ShardedParameters StageParameters(const Stage& stage) const {
    ShardedParameters sum;
    bool has_table = false;
    const ModuleSpec& module = job.model.modules[stage.module];
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      LayerSpec layer = module.layers[LayerId(stage.first_layer.value() + i)];
      has_table |= layer.kind == LayerKind::kEmbedding;
      if (layer.tied && !has_table) layer.tied = false;
      const ShardedParameters own = ParametersOnGpu(layer, job.parallel);
      sum.dense += own.dense;
      sum.experts += own.experts;
    }
    return sum;
  }

  // Parts into which the optimizer state of a tensor is cut.
  int64_t Shards(int64_t replicas) const {
    return job.training.optimizer_sharding == OptimizerSharding::kZero1
               ? replicas
               : 1;
  }

  // Reduce-scatter of gradients, optimizer step, all-gather of weights.
  Duration UpdateTime(int64_t parameters, int64_t replicas,
                      const LinkSpec& link) const {
    if (parameters == 0) return kZero;
    const auto count = static_cast<double>(parameters);
    // Without sharding the second half is a gather of the gradients.
    const int64_t shards = Shards(replicas);
    const bool sharded =
        job.training.optimizer_sharding == OptimizerSharding::kZero1;
    return RingCollectiveTime(count * kGradientBytes, replicas, link) +
           RingCollectiveTime(count * (sharded ? kWeightBytes : kGradientBytes),
                              replicas, link) +
           costs.Cost(MemoryOp{count / static_cast<double>(shards) *
                               kOptimizerTraffic});
  }

  const JobSpec job;
  const bool reuse;
  const RooflineCost costs;
  IdVector<ModuleId, IdVector<LayerId, Fingerprint>> fingerprints{};
  mutable SubgraphCache cache{};
};

StageCostModel::StageCostModel(const JobSpec& job, bool reuse)
    : state_(std::make_unique<State>(job, reuse)) {}

StageCostModel::~StageCostModel() = default;

StageCost StageCostModel::Cost(const Stage& stage, const WorkShape& shape,
                               bool needs_input_grad) const {
  const State& state = *state_;
  const ModuleSpec& module = state.job.model.modules[stage.module];
  const ParallelLayout& parallel = state.job.parallel;
  const bool trained = !state.job.IsFrozen(stage.module);
  StageCost total;
  if (stage.num_layers == 0) return total;

  const Fingerprint shape_print = shape.fingerprint();
  Fingerprint last_key{};
  LayerCost cost{};
  int64_t repeated = 0;
  Flops forward_flops{};
  for (int32_t i = 0; i < stage.num_layers; ++i) {
    const LayerId id(stage.first_layer.value() + i);
    // Below a later layer of a trained module there is always one to train.
    const GradientNeeds needs{.weights = trained,
                              .input = needs_input_grad || (trained && i > 0)};
    const auto price = [&] {
      return PriceLayer(module.layers[id], shape, parallel, needs, state.costs);
    };
    if (state.reuse) {
      const Fingerprint key = FingerprintBuilder()
                                  .Add(state.fingerprints[stage.module][id])
                                  .Add(shape_print)
                                  .Add(needs.weights)
                                  .Add(needs.input)
                                  .Build();
      if (i > 0 && key == last_key) {
        ++repeated;
      } else {
        cost = state.cache.Get(key, price);
      }
      last_key = key;
    } else {
      cost = price();
    }
    total.forward += cost.forward;
    total.backward += cost.backward;
    total.weight_grad += cost.weight_grad;
    total.activations += cost.activations;
    total.freed_by_backward += cost.freed_by_backward;
    forward_flops += cost.forward_flops;
  }
  state.cache.CountHits(repeated);
  if (!state.reuse) state.cache.CountMisses(stage.num_layers);

  const double passes = trained ? 3 : needs_input_grad ? 2 : 1;
  total.model_flops = forward_flops * passes;

  const LayerId first = stage.first_layer;
  const LayerId last(first.value() + stage.num_layers - 1);
  const int64_t width_before =
      first.value() > 0 ? module.layers[LayerId(first.value() - 1)].hidden : 0;
  total.input =
      std::min(InputBytes(module.layers[first], shape, width_before, parallel),
               total.activations);

  const LayerSpec& end = module.layers[last];
  const bool hands_on = last.value() + 1 == module.layers.size();
  total.output_rows = LayerTokens(end, shape);
  if (hands_on && module.role == ModuleRole::kEncoder &&
      shape.output_tokens > 0) {
    total.output_rows = shape.output_tokens;
  }
  total.output_width = end.hidden;
  total.output = Bytes(CeilDiv(total.output_rows * total.output_width * 2,
                               parallel.gpus_per_rank()));
  return total;
}

StageMemory StageCostModel::Memory(const Stage& stage) const {
  const State& state = *state_;
  const ShardedParameters own = state.StageParameters(stage);
  StageMemory memory;
  memory.weights = Bytes((own.dense + own.experts) * kWeightBytes);
  if (state.job.IsFrozen(stage.module)) return memory;
  memory.gradients = Bytes((own.dense + own.experts) * kGradientBytes);
  const ParallelLayout& parallel = state.job.parallel;
  memory.optimizer = Bytes(CeilDiv(own.dense * kOptimizerBytes,
                                   state.Shards(DenseReplicas(parallel))) +
                           CeilDiv(own.experts * kOptimizerBytes,
                                   state.Shards(ExpertReplicas(parallel))));
  return memory;
}

Duration StageCostModel::Epilogue(const Partition& partition,
                                  RankId rank) const {
  const State& state = *state_;
  ShardedParameters sum;
  for (const Stage& stage : partition.stages) {
    if (stage.rank != rank || state.job.IsFrozen(stage.module)) continue;
    const ShardedParameters own = state.StageParameters(stage);
    sum.dense += own.dense;
    sum.experts += own.experts;
  }
  const ParallelLayout& parallel = state.job.parallel;
  const ClusterSpec& cluster = state.job.cluster;
  // GPUs that hold equal weights are one rank's (cp) or lie in every replica.
  const int64_t reach =
      parallel.dp == 1 ? parallel.gpus_per_rank() : parallel.num_gpus();
  const LinkSpec& link =
      reach <= cluster.gpus_per_node ? cluster.intra_node : cluster.inter_node;
  return state.UpdateTime(sum.dense, DenseReplicas(parallel), link) +
         state.UpdateTime(sum.experts, ExpertReplicas(parallel), link);
}

StageCostModel::Transfer StageCostModel::TransferTime(RankId from, RankId to,
                                                      Bytes payload) const {
  if (from == to) return {};
  const JobSpec& job = state_->job;
  const LinkSpec& link = job.cluster.Link(job.parallel.FirstGpu(0, from),
                                          job.parallel.FirstGpu(0, to));
  const Duration busy = pipeloom::TransferTime(payload, link.bandwidth);
  return {.time = link.latency + busy, .occupancy = busy};
}

Bytes StageCostModel::Overhead() const { return kContext + kWorkspace; }

const JobSpec& StageCostModel::job() const { return state_->job; }

CacheCounters StageCostModel::cache() const {
  return {.hits = state_->cache.hits(), .misses = state_->cache.misses()};
}

}  // namespace pipeloom::emulator
