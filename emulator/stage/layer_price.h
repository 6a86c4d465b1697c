// Time and memory of one layer at one shape on one GPU of a rank: its passes'
// operators priced as the job's framework runs them (framework_price.h), with
// the traffic of sharded weights beside them.
#ifndef PIPELOOM_EMULATOR_STAGE_LAYER_PRICE_H_
#define PIPELOOM_EMULATOR_STAGE_LAYER_PRICE_H_

#include <cstdint>

#include "emulator/ops/op_cost.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/subgraph_cache.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/training_setup.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// What decides a layer's price besides itself and its shape.
struct LayerSetting {
  ParallelLayout parallel{};  // The module's own.
  int32_t copies = 1;         // Of the stage in the rank.
  int32_t tensor_copies = 1;  // Equal weights in a tensor-parallel group.
  const OpCostModel& costs;
  OptimizerSharding sharding = OptimizerSharding::kZero1;
  OpOptions options{};
  const TrainingSetup& setup;
  const ClusterSpec& cluster;
  const DeviceSpec& device;
};

// `shape`: what one of the copies works on of the `whole`.
LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& whole,
                     const WorkShape& shape, const GradientNeeds& needs,
                     const LayerSetting& setting);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_LAYER_PRICE_H_
