// Disaggregated placement of a job: its orchestration problem, priced by the
// cost model at every tensor-parallel size, the best answer, and both it and
// the co-located layout emulated, so that SEMU decides between them.
//
// Modules in data-flow order make three units: encoders before the first
// backbone, backbones, the rest. A sample of the formulation is a microbatch of
// the job. Frozen modules cost what they cost frozen.
#ifndef PIPELOOM_PLANNER_LAYOUT_DISAGGREGATION_H_
#define PIPELOOM_PLANNER_LAYOUT_DISAGGREGATION_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/placement/orchestration.h"

namespace pipeloom::planner {

// Operator costs for a layout; null: the roofline.
using PriceLayout =
    std::function<std::unique_ptr<const emulator::OpCostModel>(const JobSpec&)>;

// All GPUs of the job's layout, its step of dp x microbatches samples, and
// tensor parallelism of 1, 2, 4 and 8 within a node. InvalidArgument: the
// sample has no work for the model, or the model has no backbone. Some ten
// milliseconds a size.
absl::StatusOr<partition::OrchestrationProblem> MakeOrchestrationProblem(
    const JobSpec& job, const BatchMetadata& sample, const PriceLayout& price);

// Each with the emulated time of the same step.
struct PlacementComparison {
  partition::OrchestrationAnswer answer{};
  Duration disaggregated{};  // 1F1B, microbatches reordered.
  // The paper's baseline: encoder and generator are stages like the others.
  partition::OrchestrationAnswer megatron_style{};
  Duration megatron{};  // 1F1B; 0: it does not fit.
  // The job's own layout, cut as `megatron` does; 0: it does not fit.
  Duration colocated{};
  bool disaggregate() const {
    return colocated == kZero || disaggregated < colocated;
  }
};

// Solves the problem and emulates a step of each placement with as many
// microbatches over all replicas (the sample is repeated where it is short). In
// the disaggregated one each backbone pipeline sees an encoder and a generator
// rank that are as fast as its share of those units, and whose work is averaged
// over the replicas they serve; tensors between units cross the network link
// (the brokers' regrouping is not modelled besides). The baseline has tp 8 and
// a backbone stage for each 8 billion parameters: 1, 2 and 9 for the paper's
// models (the paper: 1, 2 and 10). ResourceExhausted: no disaggregated
// placement fits.
absl::StatusOr<PlacementComparison> ComparePlacements(
    const JobSpec& job, const BatchMetadata& sample, const PriceLayout& price);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_DISAGGREGATION_H_
