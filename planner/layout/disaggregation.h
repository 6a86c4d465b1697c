// Disaggregated placement of a job. Its orchestration problem is priced by the
// cost model at every tensor-parallel size and solved; the answer and the
// co-located layout are both emulated, so that SEMU decides between them.
//
// Modules in data-flow order make three units: encoders before the first
// backbone, backbones, and the rest. A sample of the formulation is a
// microbatch of the job. Frozen modules are priced as frozen.
#ifndef PIPELOOM_PLANNER_LAYOUT_DISAGGREGATION_H_
#define PIPELOOM_PLANNER_LAYOUT_DISAGGREGATION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/placement/orchestration.h"

namespace pipeloom::planner {

// Makes the operator costs of a layout; null means the roofline.
using PriceLayout =
    std::function<std::unique_ptr<const emulator::OpCostModel>(const JobSpec&)>;

// Makes the problem for all GPUs of the job's layout, its step of dp x
// microbatches samples, and tensor parallelism of 1, 2, 4 and 8 within a node.
// InvalidArgument if the sample has no work for the model, or if the model has
// no backbone. Takes some ten milliseconds for each size.
absl::StatusOr<partition::OrchestrationProblem> MakeOrchestrationProblem(
    const JobSpec& job, const BatchMetadata& sample, const PriceLayout& price);

// The usual number of schedules that ComparePlacements searches.
inline constexpr int64_t kPlacementEvaluations = 100;

// Placements of a job, each with the emulated time of the same step.
struct PlacementComparison {
  partition::OrchestrationAnswer answer{};
  Duration disaggregated{};  // 1F1B with microbatches reordered.
  // The paper's baseline, in which encoder and generator are stages like the
  // others.
  partition::OrchestrationAnswer megatron_style{};
  Duration megatron{};  // 1F1B; 0 if it does not fit.
  // The job's own layout, the slowest of its replicas: by the `megatron`
  // strategy, and by the strategy that the job names on the partition of its
  // rule. 0 if it does not fit.
  Duration colocated{};
  Duration own_strategy{};
  // Returns the fastest time of the job's own layout; 0 if none fits.
  Duration best_colocated() const {
    if (colocated == kZero || own_strategy == kZero) {
      return std::max(colocated, own_strategy);
    }
    return std::min(colocated, own_strategy);
  }
  // Returns whether the disaggregated placement is faster.
  bool disaggregate() const {
    return best_colocated() == kZero || disaggregated < best_colocated();
  }
};

// Solves the problem and emulates a step of each placement with as many
// microbatches over all replicas (a sample that is too short is repeated).
//
// In the disaggregated placement, each backbone pipeline sees an encoder and a
// generator rank that are as fast as its share of those units and whose work is
// averaged over the replicas they serve. Tensors between units cross the
// network link; regrouping by the brokers is not modelled. The baseline has tp
// 8 and a backbone stage for each 8 billion parameters: 1, 2 and 9 for the
// paper's models (in the paper 1, 2 and 10).
//
// The job's own strategy searches `evaluations` schedules for each of the eight
// replicas that take longest with `megatron`, or for all if there are fewer.
// Returns ResourceExhausted if no disaggregated placement fits, Cancelled after
// a stop request.
absl::StatusOr<PlacementComparison> ComparePlacements(
    const JobSpec& job, const BatchMetadata& sample, const PriceLayout& price,
    int64_t evaluations = kPlacementEvaluations,
    const std::stop_token& stop = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_DISAGGREGATION_H_
