// Memory that stages and ranks hold throughout a step, and their updates.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "base/numeric.h"
#include "emulator/stage/made_gradients.h"
#include "emulator/stage/stage_cost.h"
#include "emulator/stage/stage_cost_state.h"

namespace pipeloom::emulator {
namespace {

// Memory outside of the framework's allocator: context, loaded kernels,
// communication buffers. From experience with H800 training processes, not
// measured.
constexpr Bytes kContext{int64_t{1} << 30};
// Workspaces of the product libraries: 32 MiB each for the framework and for
// its fused layers, from Hopper on (PyTorch and TransformerEngine sources).
constexpr Bytes kLibraries{int64_t{64} << 20};

// Adds the all-reduce of the gradients of a table that an embedding and a loss
// head on another rank share: between those two, once all passes are through
// (Megatron-LM, finalize_model_grads.py: _allreduce_word_embedding_grads).
void AddTiedTables(const StageCostState& state, const Partition& partition,
                   IdVector<RankId, RankUpdate>* updates) {
  for (const ModuleId m : state.job.model.modules.ids()) {
    const ModuleSpec& module = state.job.model.modules[m];
    if (state.job.IsFrozen(m) || module.adapter_rank > 0) continue;
    const Stage* embedding = nullptr;
    for (const Stage& stage : partition.stages) {
      if (stage.module != m) continue;
      for (int32_t i = 0; i < stage.num_layers; ++i) {
        const LayerSpec& layer =
            module.layers[LayerId(stage.first_layer.value() + i)];
        if (layer.kind == LayerKind::kEmbedding) embedding = &stage;
        if (!layer.tied || embedding == nullptr ||
            embedding->rank == stage.rank) {
          continue;
        }
        const ParallelLayout& parallel = state.LayoutOf(stage).parallel;
        int64_t bytes =
            CeilDiv(layer.vocab * layer.hidden, int64_t{parallel.tp}) *
            GradientBytes(state.PrecisionOn(module, stage.rank),
                          state.job.setup);
        if (state.job.training.optimizer_sharding >=
            OptimizerSharding::kZero2) {
          bytes = CeilDiv(bytes,
                          ShardsOf(DenseReplicas(parallel), state.job.setup));
        }
        // Each sends half of its own, then half of the sum.
        const auto half = [&](RankId from, RankId to) {
          return TransferBetween(state.job, state.view, from, to,
                                 Bytes(CeilDiv(bytes, int64_t{2})))
              .time;
        };
        const Duration time = 2 * std::max(half(embedding->rank, stage.rank),
                                           half(stage.rank, embedding->rank));
        (*updates)[embedding->rank].optimizer += time;
        (*updates)[stage.rank].optimizer += time;
      }
    }
  }
}

}  // namespace

StageMemory StageCostModel::Memory(const Stage& stage) const {
  const StageCostState& state = *state_;
  const Precision precision =
      state.PrecisionOn(state.ModuleOf(stage), stage.rank);
  ParameterBytes bytes = BytesOf(precision);
  if (precision == Precision::kBf16) {
    bytes.weights = state.job.setup.held_weight_bytes;
    bytes.gradients = SummedGradientBytes(state.job.setup);
    bytes.optimizer = state.job.setup.optimizer_bytes;
  }
  int64_t largest = 0;
  const ShardedParameters own = state.StageParameters(stage, &largest);
  const ParallelLayout& parallel = state.LayoutOf(stage).parallel;
  const OptimizerSharding sharding = state.ShardingOf(parallel);
  StageMemory memory;
  const bool gathered = state.job.setup.gathered_in_pipeline &&
                        sharding == OptimizerSharding::kZero3 &&
                        state.job.parallel.pp > 1;
  // Shards in fp32 are in the optimizer's memory.
  const bool fp32_shards = state.job.setup.fp32_shards &&
                           sharding == OptimizerSharding::kZero3 &&
                           !state.job.IsFrozen(stage.module) &&
                           state.ModuleOf(stage).adapter_rank == 0;
  if (!fp32_shards) {
    memory.weights =
        state.Stored(own, bytes.weights, OptimizerSharding::kZero3, parallel);
  }
  // One layer is gathered while the next one is being gathered.
  if (sharding == OptimizerSharding::kZero3) {
    memory.weights += Bytes((gathered ? own.dense + own.experts : 2 * largest) *
                            bytes.weights);
  }
  if (state.job.IsFrozen(stage.module)) return memory;
  const int64_t adapter_rank = state.ModuleOf(stage).adapter_rank;
  const ShardedParameters trained = state.TrainedParameters(stage, &largest);
  if (adapter_rank > 0) {
    memory.weights += state.Stored(trained, bytes.weights,
                                   OptimizerSharding::kZero3, parallel);
  }
  memory.gradients = (HasBuckets(state.job) ? 2 : 1) *
                     state.Stored(trained, bytes.gradients,
                                  OptimizerSharding::kZero2, parallel);
  // The gradients of one layer are whole until they are reduced, all of them if
  // that is once a step.
  if (sharding >= OptimizerSharding::kZero2) {
    memory.gradients +=
        Bytes((gathered ? trained.dense + trained.experts : largest) *
              bytes.gradients);
  }
  memory.optimizer = state.Stored(trained, bytes.optimizer,
                                  OptimizerSharding::kZero1, parallel);
  // The fullest owner has at least the largest tensor.
  if (state.HasOwners(ShardsOf(DenseReplicas(parallel), state.job.setup))) {
    const LayerTensors tensors = state.TensorsOf(stage);
    memory.optimizer = std::max(
        memory.optimizer,
        Bytes(std::max(tensors.dense.largest, tensors.experts.largest) *
              bytes.optimizer));
  }
  return memory;
}

RankOverhead StageCostModel::Overhead(const Partition& partition,
                                      RankId rank) const {
  const StageCostState& state = *state_;
  RankOverhead overhead{.context = kContext, .libraries = kLibraries};
  std::set<MatrixShape> shapes;
  for (const Stage& stage : partition.stages) {
    if (stage.rank != rank || state.job.IsFrozen(stage.module) ||
        state.ModuleOf(stage).adapter_rank > 0) {
      continue;
    }
    const ParallelLayout& parallel = state.LayoutOf(stage).parallel;
    std::optional<LayerSpec> last;
    state.ForEachLayer(stage, [&](const LayerSpec& layer) {
      // An equal layer needs nothing more.
      if (last == layer) return;
      last = layer;
      for (const MatrixShape& shape : MatricesOnGpu(layer, parallel)) {
        shapes.insert(shape);
      }
    });
  }
  // Only products that add to fp32 gradients leave a 16-bit one unused.
  if (!HasFp32Weights(state.job.setup)) return overhead;
  for (const MatrixShape& shape : shapes) {
    overhead.unused_gradients += Bytes(2 * shape.outputs * shape.inputs);
  }
  return overhead;
}

IdVector<RankId, RankUpdate> StageCostModel::Updates(
    const Partition& partition) const {
  const StageCostState& state = *state_;
  IdVector<RankId, RankUpdate> all(partition.num_ranks);
  // Parameters that are alike in precision and in the number of GPUs that hold
  // the same share buckets.
  struct Alike {
    ShardedParameters parameters;
    LayerTensors tensors;
  };
  std::map<std::tuple<RankId, Precision, int32_t>, Alike> alike;
  for (const StageId s : partition.stages.ids()) {
    const Stage& stage = partition.stages[s];
    if (state.job.IsFrozen(stage.module)) continue;
    const ShardedParameters own = state.TrainedParameters(stage);
    if (own.dense + own.experts == 0) continue;
    const int32_t copies = state.LayoutOf(stage).tensor_copies;
    Alike& sum =
        alike[{stage.rank, state.PrecisionOn(state.ModuleOf(stage), stage.rank),
               copies}];
    sum.parameters.dense += own.dense;
    sum.parameters.experts += own.experts;
    if (state.job.setup.broadcasts_weights) {
      const LayerTensors tensors = state.TensorsOf(stage);
      sum.tensors.dense.Add(tensors.dense);
      sum.tensors.experts.Add(tensors.experts);
    }
    ParallelLayout parallel = state.job.parallel;
    parallel.dp *= copies;
    all[stage.rank].parts.push_back(
        {.stage = s,
         .parameters = own.dense + own.experts,
         .buckets =
             state.Buckets(own.dense + own.experts, DenseReplicas(parallel))});
  }
  for (const auto& [key, sum] : alike) {
    const auto [rank, precision, copies] = key;
    ParallelLayout parallel = state.job.parallel;
    parallel.dp *= copies;
    state.AddUpdate(sum.parameters.dense, sum.tensors.dense, precision,
                    GroupKind::kData, DenseReplicas(parallel), copies, rank,
                    &all[rank]);
    state.AddUpdate(sum.parameters.experts, sum.tensors.experts, precision,
                    GroupKind::kExpertData, ExpertReplicas(parallel), copies,
                    rank, &all[rank]);
  }
  for (const Stage& stage : partition.stages) {
    if (state.job.IsFrozen(stage.module)) continue;
    state.AddTraffic(state.CastBytes(stage), stage.rank, &all[stage.rank]);
  }
  AddTiedTables(state, partition, &all);
  for (const RankId r : all.ids()) {
    RankUpdate& update = all[r];
    if (!update.parts.empty()) {
      update.optimizer += state.job.setup.host_per_step;
    }
    const double ring = state.view.PlaceOf(r).slow_ring;
    update.reduce = StageCostState::Slowed(update.reduce, ring);
    update.gather = StageCostState::Slowed(update.gather, ring);
    for (Duration* part : {&update.reduce, &update.optimizer, &update.gather}) {
      *part = StageCostState::Slowed(*part, state.job.setup.stretch);
    }
  }
  return all;
}

IdVector<RankId, RankUpdate> StageCostModel::SlowestUpdates(
    const Partition& partition) const {
  IdVector<RankId, RankUpdate> all = Updates(partition);
  for (const std::unique_ptr<StageCostModel>& other : others_) {
    const IdVector<RankId, RankUpdate> own = other->Updates(partition);
    for (const RankId r : all.ids()) {
      all[r].reduce = std::max(all[r].reduce, own[r].reduce);
      all[r].optimizer = std::max(all[r].optimizer, own[r].optimizer);
      all[r].gather = std::max(all[r].gather, own[r].gather);
    }
  }
  return all;
}

}  // namespace pipeloom::emulator
