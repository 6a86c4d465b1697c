// Memory that stages and ranks hold throughout a step, and the time after the
// last task.
#include <algorithm>
#include <optional>
#include <set>

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

}  // namespace

StageMemory StageCostModel::Memory(const Stage& stage) const {
  const StageCostState& state = *state_;
  const ParameterBytes bytes =
      BytesOf(state.PrecisionOn(state.ModuleOf(stage), stage.rank));
  int64_t largest = 0;
  const ShardedParameters own = state.StageParameters(stage, &largest);
  const OptimizerSharding sharding = state.job.training.optimizer_sharding;
  const ParallelLayout& parallel = state.LayoutOf(stage).parallel;
  StageMemory memory;
  const bool gathered = state.job.setup.gathered_in_pipeline &&
                        sharding == OptimizerSharding::kZero3 &&
                        state.job.parallel.pp > 1;
  memory.weights =
      state.Stored(own, bytes.weights, OptimizerSharding::kZero3, parallel);
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
  memory.gradients = state.Stored(trained, bytes.gradients,
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
  for (const MatrixShape& shape : shapes) {
    overhead.unused_gradients += Bytes(2 * shape.outputs * shape.inputs);
  }
  return overhead;
}

Duration StageCostModel::Epilogue(const Partition& partition,
                                  RankId rank) const {
  const StageCostState& state = *state_;
  // Once for each precision and number of GPUs that hold the same, as
  // parameters that are alike in both share a bucket.
  std::set<int32_t> copies;
  for (const Stage& stage : partition.stages) {
    copies.insert(state.LayoutOf(stage).tensor_copies);
  }
  constexpr Precision kPrecisions[] = {Precision::kBf16, Precision::kFp8,
                                       Precision::kFp32};
  const auto update = [&](Precision precision, int32_t tensor_copies) {
    ShardedParameters sum;
    ParallelLayout parallel = state.job.parallel;
    parallel.dp *= tensor_copies;
    for (const Stage& stage : partition.stages) {
      if (stage.rank != rank || state.job.IsFrozen(stage.module) ||
          state.LayoutOf(stage).tensor_copies != tensor_copies ||
          state.PrecisionOn(state.ModuleOf(stage), rank) != precision) {
        continue;
      }
      const ShardedParameters own = state.TrainedParameters(stage);
      sum.dense += own.dense;
      sum.experts += own.experts;
    }
    return state.UpdateTime(sum.dense, precision, GroupKind::kData,
                            DenseReplicas(parallel), tensor_copies, rank) +
           state.UpdateTime(sum.experts, precision, GroupKind::kExpertData,
                            ExpertReplicas(parallel), tensor_copies, rank);
  };
  Duration time = kZero;
  for (const Precision precision : kPrecisions) {
    for (const int32_t c : copies) time += update(precision, c);
  }
  if (time > kZero) time += state.job.setup.host_per_step;
  return StageCostState::Slowed(time, state.job.setup.stretch);
}

}  // namespace pipeloom::emulator
