// What a training framework makes of the operators of a layer: the times of a
// stage as one framework runs it, beside the ideal ones of stage_cost.h.
//
//   forward   products, attention by its kernel, pointwise kernels, collectives
//             that nothing hides; never less than launching the kernels takes
//   backward  the same of both gradients, a second forward if recomputed, and
//             with full sharding the gathering of weights and the reduction of
//             gradients as far as they show
//
// The equations and where each constant comes from: docs/validation.md. Const
// methods may be called from any number of threads; O(layers) each.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_COST_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_COST_H_

#include "base/units.h"
#include "emulator/op_cost.h"
#include "emulator/op_graph.h"
#include "emulator/roofline_cost.h"
#include "ir/job_spec.h"
#include "ir/microbatches.h"
#include "ir/partition.h"
#include "ir/training_setup.h"

namespace pipeloom::emulator {

struct FrameworkStageTime {
  Duration forward{};
  Duration backward{};  // With weight gradients and any second forward.
};

class FrameworkCost {
 public:
  // REQUIRES: ValidateJobSpec(job) is OK. `measured` prices products, fused
  // attention and collectives inside a node instead of the roofline, and has to
  // outlive this; null: none.
  FrameworkCost(const JobSpec& job, const TrainingSetup& setup,
                const OpCostModel* measured = nullptr);

  // Of a trained stage on one microbatch.
  FrameworkStageTime StageTime(const Stage& stage,
                               const WorkShape& shape) const;
  // The rest of the gradient reduction and the optimizer step.
  Duration Epilogue(const Partition& partition, RankId rank) const;

 private:
  struct Passes {
    double forward = 0;
    double backward = 0;
  };
  Passes LayerPasses(const LayerSpec& layer, const WorkShape& shape,
                     bool input_grad) const;
  double Price(const std::vector<OpStep>& steps, const LayerSpec& layer,
               const WorkShape& shape, bool hides_tensor) const;
  double Base(const Op& op) const;
  double PriceOp(const Op& op, const LayerSpec& layer,
                 const WorkShape& shape) const;
  double Memory(double bytes) const;
  double GroupedSeconds(const GemmOp& op) const;
  // All-gather or reduce-scatter of `bytes` over the replicas.
  double OverReplicas(double bytes) const;

  JobSpec job_;
  TrainingSetup setup_;
  RooflineCost costs_;
  const OpCostModel* measured_ = nullptr;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_COST_H_
