// Time and memory of one layer at one shape on one GPU of a rank: the operators
// of its passes priced as the job's framework runs them (framework_price.h),
// overlapped with the traffic of sharded weights.
#ifndef PIPELOOM_EMULATOR_STAGE_LAYER_PRICE_H_
#define PIPELOOM_EMULATOR_STAGE_LAYER_PRICE_H_

#include <cstdint>

#include "emulator/framework/framework_price.h"
#include "emulator/ops/op_cost.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/subgraph_cache.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/training_setup.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// The setting that determines a layer's price, apart from the layer and its
// shape.
struct LayerSetting {
  ParallelLayout parallel{};  // That of the module.
  int32_t copies = 1;         // Copies of the stage in the rank.
  // Copies with equal weights in a tensor-parallel group.
  int32_t tensor_copies = 1;
  const OpCostModel& costs;
  OptimizerSharding sharding = OptimizerSharding::kZero1;
  OpOptions options{};
  const TrainingSetup& setup;
  const ClusterSpec& cluster;
  const DeviceSpec& device;
  MicrobatchSetting microbatches{};
};

// Prices a layer. `shape` is the part of `whole` that one of the copies works
// on.
LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& whole,
                     const WorkShape& shape, const GradientNeeds& needs,
                     const LayerSetting& setting);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_LAYER_PRICE_H_
