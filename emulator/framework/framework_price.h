// Prices of a layer's operators as the job's framework runs them
// (ir/job/training_setup.h): with kernels that are not fused or not made for
// the device, collectives that nothing hides, launches by the host. With a
// setup of fused kernels, operators keep the prices of the underlying cost
// model.
//
// docs/emulator_model.md has the equations and the sources of the constants.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_FRAMEWORK_PRICE_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_FRAMEWORK_PRICE_H_

#include <algorithm>
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

// Time of kernels of a layer's passes that are not among its operators, and the
// number of kernels that the host launches for each pass.
struct KernelTraffic {
  // Bytes that kernels move for each element.
  struct Bytes {
    double forward = 0;
    double backward = 0;
  };
  Duration forward{};
  Duration backward{};  // For the input gradient, in both forms.
  double forward_kernels = 0;
  double backward_kernels = 0;  // For both gradients.
  // Part of backward_kernels that is the weight gradient's.
  double weight_grad_kernels = 0;
};

// How a step runs its microbatches.
struct MicrobatchSetting {
  // Share of the passes that run without one of another microbatch, so that
  // nothing hides a dispatch that otherwise overlaps with one.
  double alone = 0;
  // Whether a microbatch's sequences are packed instead of a batch of equal
  // ones, as samples with images are.
  bool packed = false;
};

// Prices of one layer at one shape. REQUIRES: everything passed in outlives it.
// O(1) per operator.
class FrameworkPrices {
 public:
  FrameworkPrices(const LayerSpec& layer, const WorkShape& shape,
                  const ParallelLayout& parallel, const TrainingSetup& setup,
                  const ClusterSpec& cluster, const DeviceSpec& device,
                  const OpCostModel& costs,
                  const MicrobatchSetting& microbatches = {});

  // Returns the time of one operator.
  Duration Cost(const Op& op) const;
  // Returns the time of the steps one after another, with the overlap of the
  // setup.
  StepsCost Sum(const std::vector<OpStep>& steps) const;
  // Returns the time of the operators among the steps that are the core of
  // attention.
  Duration AttentionCore(const std::vector<OpStep>& steps) const;
  // Returns the additional kernels of the layer's passes.
  KernelTraffic Traffic(const LayerOps& ops) const;
  // Returns `time`, or a longer time if launching `kernels` kernels takes
  // longer.
  Duration WithLaunches(Duration time, double kernels) const;
  // Returns `pass`, the time of `steps` and of all kernels between them, or a
  // longer time if products take so much of it that the GPU lowers its clock.
  // For plain PyTorch alone: Cost() of other frameworks counts that by
  // operator.
  Duration WithPowerLimit(const std::vector<OpStep>& steps,
                          Duration pass) const;
  // Returns how long the host takes to launch `kernels` kernels; 0 if it never
  // delays the GPU.
  Duration HostTime(double kernels) const;
  // Returns how much of a pass of `time`, which waits for collectives for
  // `wait`, can run while another pass waits: neither waits nor launches can.
  Duration ComputeOf(Duration time, Duration wait, double kernels) const {
    return std::max(kZero, time - std::max(wait, HostTime(kernels)));
  }
  // Returns the time of a kernel that moves `bytes`, at the device's own rate,
  // since the bytes of kernels that are not fused were measured against that
  // rate.
  Duration Memory(double bytes) const;
  // Returns the time of a pass of all layers together with the collectives of
  // sharded weights that overlap with it.
  Duration OverlapWithSharding(Duration pass, Duration moved) const;

 private:
  // Returns how much longer than by itself an operator of `time` takes in a
  // step full of products: `share` as DeviceSpec::sustained_bf16, of the time
  // that its operations take at the peak rate.
  Duration AddedByPower(Duration time, double flops, double share,
                        FlopRate peak) const;
  // Returns the time of the operator in a step, as the framework counts it.
  Duration Sustained(Duration time, double flops, double share,
                     FlopRate peak) const;
  // Returns the time of a product in a step, given that of one by itself;
  // `low`: the time is one of 16 bits, the product runs in fp8.
  Duration InStep(const GemmOp& op, Duration time, bool low) const;
  Duration Gemm(const GemmOp& given) const;
  // Returns the least time of a product whose operands are not aligned; 0 of
  // one that is, or whose width the framework pads.
  Duration UnalignedTime(const GemmOp& op) const;
  Duration Attention(const AttentionOp& op) const;
  double GroupedSeconds(const GemmOp& op) const;
  KernelTraffic ConvolutionTraffic() const;
  // Parts of Traffic(): kernels of queries, keys and values; the activation of
  // experts that is part of their products; norms without sequence parallelism;
  // kernels that are not fused; a loss in fp32.
  void AddProjections(KernelTraffic* traffic) const;
  void SubtractFusedExperts(KernelTraffic* traffic) const;
  void AddWholeNorms(KernelTraffic* traffic) const;
  void AddPointwise(KernelTraffic* traffic) const;
  void AddFp32Loss(KernelTraffic* traffic) const;
  // Adds kernels on contiguous memory, or on strided.
  void AddStreamed(const KernelTraffic::Bytes& bytes, double elements,
                   KernelTraffic* traffic) const;
  void AddStrided(const KernelTraffic::Bytes& bytes, double elements,
                  KernelTraffic* traffic) const;
  // Returns the tokens of the layer on a context-parallel GPU.
  double Tokens() const;
  // Returns which kernels of this shape CUDA graphs launch.
  CudaGraphs Graphs() const {
    return shape_.host_launched ? CudaGraphs::kNone : setup_.graphs;
  }
  // Returns the precision in which the device runs a product: 16 bits for one
  // in fp8 if it has no fp8 units.
  Precision RunsIn(const GemmOp& op) const {
    return op.precision == Precision::kFp8 && device_.fp8.flops_per_second <= 0
               ? Precision::kBf16
               : op.precision;
  }
  // Returns the time of a product in the setup's low precision, including the
  // casts of its operand. Takes the product's time in bf16.
  Duration LowPrecision(const GemmOp& op, Duration base) const;

  const LayerSpec& layer_;
  const WorkShape& shape_;
  const ParallelLayout& parallel_;
  const TrainingSetup& setup_;
  const ClusterSpec& cluster_;
  const DeviceSpec& device_;
  const OpCostModel& costs_;
  MicrobatchSetting microbatches_{};
};

// Bytes per parameter that the optimizer moves in addition to those of its
// step: the norm of the gradients reads them once more, and clearing writes
// them.
inline constexpr double kNormAndClearBytes = 10;

// Bytes that an owner of whole tensors moves for each parameter when it updates
// them by single PyTorch operators. They were counted in InternEvo's source
// (solver/optimizer/hybrid_zero_optim.py) and in AdamW of PyTorch 1.13, which
// InternEvo's image has. Gradients in 16 bits: cast to fp32 for their norm and
// read (6, 4), joined to one tensor (4), cast (6), scaled (8). AdamW: decay
// (8), first moment (8, 12), second (8, 12), its root, quotient and sum (8
// each), update (16). The weight in 16 bits is written (6).
inline constexpr double kEagerOwnerBytes = 28 + 88 + 6;
// Bytes for each gradient in 16 bits that is copied to a bucket and back.
inline constexpr double kBucketCopyBytes = 8;

// Bytes per parameter of casting weights for low-precision products once a
// step: 16 bits are read, and one byte is written for each of the two layouts
// that products of a layer take.
inline constexpr double kWeightCastBytes = 4;
// Bytes per element of a weight gradient that is added to the gradients by a
// kernel of its own: both are read, in 16 bits, and one is written. The product
// writes 16 bits.
inline constexpr double kGradientSumBytes = 6;

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_FRAMEWORK_PRICE_H_
