// What of a layer's weights lies on one GPU, and which GPUs hold the same.
#ifndef PIPELOOM_EMULATOR_STAGE_LAYER_WEIGHTS_H_
#define PIPELOOM_EMULATOR_STAGE_LAYER_WEIGHTS_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"

namespace pipeloom::emulator {

// Parameters that one GPU holds: matrices by tp, experts by tp and ep, vectors
// and low-rank projections down whole.
struct ShardedParameters {
  int64_t dense = 0;
  int64_t experts = 0;
};
ShardedParameters ParametersOnGpu(const LayerSpec& layer,
                                  const ParallelLayout& parallel);

// GPUs that hold the same part of the weights.
int64_t DenseReplicas(const ParallelLayout& parallel);
int64_t ExpertReplicas(const ParallelLayout& parallel);

// The matrices of a layer's products as they lie on one GPU, outputs x inputs;
// of equal experts one. Not the loss head's.
struct MatrixShape {
  int64_t outputs = 0;
  int64_t inputs = 0;
  auto operator<=>(const MatrixShape&) const = default;
};
std::vector<MatrixShape> MatricesOnGpu(const LayerSpec& layer,
                                       const ParallelLayout& parallel);

// Bytes a parameter. `weights`: what products read; fp8 keeps two copies (by
// rows and by columns) beside the 16-bit weight.
struct ParameterBytes {
  int64_t weights = 2;
  int64_t gradients = 4;   // Summed in fp32.
  int64_t optimizer = 12;  // fp32 weight and two moments.
};
ParameterBytes BytesOf(Precision precision);

// Bytes a parameter whose gradients cross to other replicas.
int64_t GradientBytes(Precision precision, const TrainingSetup& setup);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_LAYER_WEIGHTS_H_
