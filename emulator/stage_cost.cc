#include "emulator/stage_cost.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/numeric.h"
#include "emulator/layer_fingerprint.h"
#include "emulator/layer_memory.h"
#include "emulator/layer_weights.h"
#include "emulator/op_graph.h"
#include "emulator/roofline_cost.h"
#include "emulator/subgraph_cache.h"

namespace pipeloom::emulator {
namespace {

// Outside of the framework's allocator: context, loaded kernels, communication
// buffers. From memory of H800 training processes, not measured.
constexpr Bytes kContext{int64_t{1} << 30};
// Workspaces of the product libraries: 32 MiB each for the framework and for
// its fused layers, from Hopper on (PyTorch and TransformerEngine sources).
constexpr Bytes kLibraries{int64_t{64} << 20};

// How a pass is priced: the layer and what is not its own.
struct Setting {
  const ParallelLayout& parallel;
  const OpCostModel& costs;
  OptimizerSharding sharding = OptimizerSharding::kZero1;
  OpOptions options{};
};

// Fully sharded weights are gathered for each pass, and gradients reduced
// after each, beside the neighbouring layers' passes: a pass is at least as
// long as what is moved beside it.
void AddSharding(const LayerSpec& layer, const GradientNeeds& needs,
                 const Setting& setting, LayerCost* cost) {
  if (setting.sharding != OptimizerSharding::kZero2 &&
      setting.sharding != OptimizerSharding::kZero3) {
    return;
  }
  const ShardedParameters own = ParametersOnGpu(layer, setting.parallel);
  const ParameterBytes bytes = BytesOf(setting.options.precision);
  const auto moved = [&](Collective kind, int64_t parameter_bytes) {
    return setting.costs.Cost(
               CollectiveOp{.kind = kind,
                            .group = GroupKind::kData,
                            .size = DenseReplicas(setting.parallel),
                            .bytes = Real(own.dense * parameter_bytes)}) +
           setting.costs.Cost(
               CollectiveOp{.kind = kind,
                            .group = GroupKind::kExpertData,
                            .size = ExpertReplicas(setting.parallel),
                            .bytes = Real(own.experts * parameter_bytes)});
  };
  if (setting.sharding == OptimizerSharding::kZero3) {
    const Duration gather = moved(Collective::kAllGather, 2);
    cost->forward = std::max(cost->forward, gather);
    if (needs.input || needs.weights) {
      cost->backward = std::max(cost->backward, gather);
    }
  }
  if (needs.weights) {
    cost->weight_grad = std::max(
        cost->weight_grad, moved(Collective::kReduceScatter, bytes.gradients));
  }
}

LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& shape,
                     const GradientNeeds& needs, const Setting& setting) {
  const LayerOps ops =
      BuildLayerOps(layer, shape, setting.parallel, needs, setting.options);
  const LayerActivations kept =
      ActivationsOf(layer, shape, setting.parallel, setting.options.precision);
  LayerCost cost;
  cost.forward = CostOf(ops.forward, setting.costs);
  cost.backward = CostOf(ops.backward, setting.costs);
  cost.weight_grad = CostOf(ops.weight_grad, setting.costs);
  AddSharding(layer, needs, setting, &cost);
  cost.activations = needs.weights ? kept.trained : kept.frozen;
  cost.freed_by_backward =
      needs.weights ? kept.trained - kept.held_for_weight_grad : kept.frozen;
  cost.forward_flops = ops.forward_flops;
  return cost;
}

}  // namespace

struct StageCostModel::State {
  State(const JobSpec& a_job, std::unique_ptr<const OpCostModel> a_costs,
        bool a_reuse)
      : job(a_job), reuse(a_reuse), costs(std::move(a_costs)) {
    if (costs == nullptr) {
      costs = std::make_unique<RooflineCost>(job.cluster, job.parallel);
    }
    for (const ModuleSpec& module : job.model.modules) {
      auto& prints = fingerprints[fingerprints.push_back({})];
      for (const LayerSpec& layer : module.layers) {
        prints.push_back(FingerprintOf(layer));
      }
    }
  }

  const ModuleSpec& ModuleOf(const Stage& stage) const {
    return job.model.modules[stage.module];
  }

  // Calls visit(layer) for each. A tied loss head away from its embedding
  // holds a copy of the table.
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

  // What the stage's weights are on one GPU, and its largest layer's.
  ShardedParameters StageParameters(const Stage& stage,
                                    int64_t* largest = nullptr) const {
    ShardedParameters sum;
    ForEachLayer(stage, [&](const LayerSpec& layer) {
      const ShardedParameters own = ParametersOnGpu(layer, job.parallel);
      sum.dense += own.dense;
      sum.experts += own.experts;
      if (largest != nullptr) {
        *largest = std::max(*largest, own.dense + own.experts);
      }
    });
    return sum;
  }

  // `bytes` a parameter; divided over the replicas if the job shards as much.
  Bytes Stored(const ShardedParameters& own, int64_t bytes,
               OptimizerSharding from) const {
    if (job.training.optimizer_sharding < from) {
      return Bytes((own.dense + own.experts) * bytes);
    }
    return Bytes(CeilDiv(own.dense * bytes, DenseReplicas(job.parallel)) +
                 CeilDiv(own.experts * bytes, ExpertReplicas(job.parallel)));
  }

  // Reduce-scatter of gradients, optimizer step, all-gather of weights, as far
  // as the passes have not done it.
  Duration UpdateTime(int64_t parameters, Precision precision, GroupKind group,
                      int64_t replicas) const {
    if (parameters == 0) return kZero;
    const OptimizerSharding sharding = job.training.optimizer_sharding;
    const ParameterBytes bytes = BytesOf(precision);
    const double count = Real(parameters);
    const auto collective = [&](Collective kind, double size) {
      return costs->Cost(CollectiveOp{
          .kind = kind, .group = group, .size = replicas, .bytes = size});
    };
    Duration time = kZero;
    if (sharding < OptimizerSharding::kZero2) {
      time +=
          collective(Collective::kReduceScatter, count * Real(bytes.gradients));
    }
    // Without sharding the second half is a gather of the gradients.
    if (sharding < OptimizerSharding::kZero3) {
      time += collective(
          Collective::kAllGather,
          count * (sharding == OptimizerSharding::kNone ? Real(bytes.gradients)
                   : precision == Precision::kFp32      ? 4
                                                        : 2));
    }
    const int64_t shards = sharding == OptimizerSharding::kNone ? 1 : replicas;
    // Read: gradient, fp32 weight, moments. Written: the last three and the
    // weight that products read.
    const double traffic = Real(bytes.gradients) + 12 + 12 +
                           (precision == Precision::kFp32 ? 0 : 2);
    return time + costs->Cost(MemoryOp{.bytes = count / Real(shards) * traffic,
                                       .kind = MemoryKind::kOptimizer,
                                       .rows = count / Real(shards),
                                       .width = 1});
  }

  const JobSpec job;
  const bool reuse;
  std::unique_ptr<const OpCostModel> costs;
  IdVector<ModuleId, IdVector<LayerId, Fingerprint>> fingerprints{};
  IdVector<ModuleId, PassFactors> corrections{};  // Empty: none.
  mutable SubgraphCache cache{};
};

StageCostModel::StageCostModel(const JobSpec& job, bool reuse)
    : StageCostModel(job, nullptr, reuse) {}

StageCostModel::StageCostModel(const JobSpec& job,
                               std::unique_ptr<const OpCostModel> costs,
                               bool reuse)
    : state_(std::make_unique<State>(job, std::move(costs), reuse)) {}

StageCostModel::~StageCostModel() = default;

StageCost StageCostModel::Cost(const Stage& stage, const WorkShape& given,
                               bool needs_input_grad,
                               double attention_density) const {
  const State& state = *state_;
  const ModuleSpec& module = state.ModuleOf(stage);
  const WorkShape shape =
      state.job.training.batching == SequenceBatching::kPadded ? given.Padded()
                                                               : given;
  const Setting setting{.parallel = state.job.parallel,
                        .costs = *state.costs,
                        .sharding = state.job.training.optimizer_sharding,
                        .options = {.precision = module.precision,
                                    .attention_density = attention_density}};
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
      return PriceLayer(module.layers[id], shape, needs, setting);
    };
    if (state.reuse) {
      const Fingerprint key = FingerprintBuilder()
                                  .Add(state.fingerprints[stage.module][id])
                                  .Add(shape_print)
                                  .Add(needs.weights)
                                  .Add(needs.input)
                                  .Add(module.precision)
                                  .Add(attention_density)
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
  total.input = std::min(InputBytes(module.layers[first], shape, width_before,
                                    parallel, module.precision),
                         total.activations);

  const LayerSpec& end = module.layers[last];
  const bool hands_on = last.value() + 1 == module.layers.size();
  total.output_rows = LayerTokens(end, shape);
  if (hands_on && module.role == ModuleRole::kEncoder &&
      shape.output_tokens > 0) {
    total.output_rows = shape.output_tokens;
  }
  total.output_width = end.hidden;
  total.output =
      Bytes(CeilDiv(total.output_rows * total.output_width *
                        (module.precision == Precision::kFp32 ? 4 : 2),
                    parallel.gpus_per_rank()));
  if (!state.corrections.empty()) {
    const auto times = [](Duration time, double factor) {
      return Nanoseconds(std::llround(Real(time.count()) * factor));
    };
    const PassFactors& factors = state.corrections[stage.module];
    total.forward = times(total.forward, factors.forward);
    total.backward = times(total.backward, factors.backward);
    total.weight_grad = times(total.weight_grad, factors.weight_grad);
  }
  return total;
}

void StageCostModel::SetCorrections(IdVector<ModuleId, PassFactors> factors) {
  state_->corrections = std::move(factors);
}

StageMemory StageCostModel::Memory(const Stage& stage) const {
  const State& state = *state_;
  const ParameterBytes bytes = BytesOf(state.ModuleOf(stage).precision);
  int64_t largest = 0;
  const ShardedParameters own = state.StageParameters(stage, &largest);
  const OptimizerSharding sharding = state.job.training.optimizer_sharding;
  StageMemory memory;
  memory.weights = state.Stored(own, bytes.weights, OptimizerSharding::kZero3);
  // One layer is gathered and the next one on its way.
  if (sharding == OptimizerSharding::kZero3) {
    memory.weights += Bytes(2 * largest * bytes.weights);
  }
  if (state.job.IsFrozen(stage.module)) return memory;
  memory.gradients =
      state.Stored(own, bytes.gradients, OptimizerSharding::kZero2);
  // One layer's are whole until they are reduced.
  if (sharding >= OptimizerSharding::kZero2) {
    memory.gradients += Bytes(largest * bytes.gradients);
  }
  memory.optimizer =
      state.Stored(own, bytes.optimizer, OptimizerSharding::kZero1);
  return memory;
}

RankOverhead StageCostModel::Overhead(const Partition& partition,
                                      RankId rank) const {
  const State& state = *state_;
  const ParallelLayout& parallel = state.job.parallel;
  RankOverhead overhead{.context = kContext, .libraries = kLibraries};
  std::set<MatrixShape> shapes;
  for (const Stage& stage : partition.stages) {
    if (stage.rank != rank || state.job.IsFrozen(stage.module)) continue;
    const int64_t tokens = state.ModuleOf(stage).role == ModuleRole::kBackbone
                               ? state.job.training.microbatch_tokens
                               : 0;
    state.ForEachLayer(stage, [&](const LayerSpec& layer) {
      for (const MatrixShape& shape : MatricesOnGpu(layer, parallel)) {
        shapes.insert(shape);
      }
      overhead.backward_scratch = std::max(
          overhead.backward_scratch, BackwardScratch(layer, tokens, parallel));
    });
  }
  for (const MatrixShape& shape : shapes) {
    overhead.unused_gradients += Bytes(2 * shape.outputs * shape.inputs);
  }
  return overhead;
}

Duration StageCostModel::Epilogue(const Partition& partition,
                                  RankId rank) const {
  const State& state = *state_;
  const ParallelLayout& parallel = state.job.parallel;
  // By precision, as modules of one share a bucket.
  constexpr Precision kPrecisions[] = {Precision::kBf16, Precision::kFp8,
                                       Precision::kFp32};
  Duration time = kZero;
  for (const Precision precision : kPrecisions) {
    ShardedParameters sum;
    for (const Stage& stage : partition.stages) {
      if (stage.rank != rank || state.job.IsFrozen(stage.module) ||
          state.ModuleOf(stage).precision != precision) {
        continue;
      }
      const ShardedParameters own = state.StageParameters(stage);
      sum.dense += own.dense;
      sum.experts += own.experts;
    }
    time += state.UpdateTime(sum.dense, precision, GroupKind::kData,
                             DenseReplicas(parallel));
    time += state.UpdateTime(sum.experts, precision, GroupKind::kExpertData,
                             ExpertReplicas(parallel));
  }
  return time;
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

const JobSpec& StageCostModel::job() const { return state_->job; }

CacheCounters StageCostModel::cache() const {
  return {.hits = state_->cache.hits(), .misses = state_->cache.misses()};
}

}  // namespace pipeloom::emulator
