// Operator times from the device's peak rates, derated by shape:
//
//   time = max(FLOPs / (peak * efficiency * shape), bytes / bandwidth, floor)
//
// The shape factors are fits to published measurements, given in
// roofline_cost.cc with their sources.
#ifndef PIPELOOM_EMULATOR_COST_ROOFLINE_COST_H_
#define PIPELOOM_EMULATOR_COST_ROOFLINE_COST_H_

#include "emulator/ops/op_cost.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/parallel_layout.h"

namespace pipeloom::emulator {

// Returns the share of `gemm_efficiency` that a product reaches, in (0, 1].
double GemmShapeFactor(const GemmOp& op);
// Returns whether the heads are those of latent attention: wide keys, usual
// values.
bool HasLatentHeads(const AttentionOp& op);
// Returns the share of the device's `attention_efficiency`; a little over 1 for
// head_dim 256.
double AttentionShapeFactor(const AttentionOp& op, const DeviceSpec& device);

// Prices of operators by peak rates.
class RooflineCost : public OpCostModel {
 public:
  // REQUIRES: both valid, see ir/job/cluster_spec.h and
  // ir/job/parallel_layout.h.
  RooflineCost(const ClusterSpec& cluster, const ParallelLayout& parallel);
  Duration Cost(const Op& op) const override;

 private:
  Duration Roofline(double flops, double rate, double bytes) const;
  Duration CollectiveTime(const CollectiveOp& op) const;

  ClusterSpec cluster_;
  ParallelLayout parallel_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_ROOFLINE_COST_H_
