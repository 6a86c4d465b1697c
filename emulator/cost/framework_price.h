// What a job's framework makes of the operators of a layer
// (ir/job/training_setup.h): kernels that are not fused or not made for the
// device, collectives that nothing hides, launches by the host. A setup of
// fused kernels leaves operators at the prices of the cost model beneath.
//
// The equations and where each constant comes from: docs/emulator_model.md.
#ifndef PIPELOOM_EMULATOR_COST_FRAMEWORK_PRICE_H_
#define PIPELOOM_EMULATOR_COST_FRAMEWORK_PRICE_H_

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "emulator/ops/op_graph.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// Kernels of a layer's passes beyond its operators, and how many kernels the
// host launches for each pass.
struct KernelTraffic {
  Duration forward{};
  Duration backward{};  // Of the input gradient, in both forms.
  double forward_kernels = 0;
  double backward_kernels = 0;     // Of both gradients.
  double weight_grad_kernels = 0;  // Of them, of the weight gradient.
};

// Prices one layer at one shape. Everything given must outlive it. O(1) an
// operator.
class FrameworkPrices {
 public:
  FrameworkPrices(const LayerSpec& layer, const WorkShape& shape,
                  const ParallelLayout& parallel, const TrainingSetup& setup,
                  const ClusterSpec& cluster, const DeviceSpec& device,
                  const OpCostModel& costs);

  Duration Cost(const Op& op) const;
  // The steps one after another, with what the setup overlaps.
  StepsCost Sum(const std::vector<OpStep>& steps) const;
  // Of operators that are attention's core alone.
  Duration AttentionCore(const std::vector<OpStep>& steps) const;
  KernelTraffic Traffic(const LayerOps& ops) const;
  // Returns `time`, or longer where launching so many kernels shows.
  Duration WithLaunches(Duration time, double kernels) const;
  // A kernel that moves so many bytes, at the device's own rate: the bytes of
  // kernels that are not fused were counted against it.
  Duration Memory(double bytes) const;
  // A pass and the collectives of sharded weights beside it, all layers alike.
  Duration OverlapWithSharding(Duration pass, Duration moved) const;

 private:
  Duration Gemm(const GemmOp& op) const;
  Duration Attention(const AttentionOp& op) const;
  double GroupedSeconds(const GemmOp& op) const;

  const LayerSpec& layer_;
  const WorkShape& shape_;
  const ParallelLayout& parallel_;
  const TrainingSetup& setup_;
  const ClusterSpec& cluster_;
  const DeviceSpec& device_;
  const OpCostModel& costs_;
};

// What a collective over replicas shows of its time behind the passes.
Duration ShownOverReplicas(Duration time, const TrainingSetup& setup);

// Bytes that the optimizer moves a parameter besides those of its step: the
// gradients' norm reads them once more, and clearing writes them.
inline constexpr double kNormAndClearBytes = 10;

// Bytes a layer keeps on a GPU besides emulator/stage/layer_memory.h, for want
// of fused attention and of sequence parallelism. `held`: of them, what a
// weight gradient apart still needs.
struct UnfusedBytes {
  Bytes kept{};
  Bytes held_for_weight_grad{};
};
UnfusedBytes UnfusedBytesOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup, bool trained);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_FRAMEWORK_PRICE_H_
