// Weights of a layer on one GPU, and the number of GPUs that hold the same.
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

// Parameters that one GPU holds: matrices are divided by tp, experts by tp and
// ep; vectors and low-rank projections down are whole.
struct ShardedParameters {
  int64_t dense = 0;
  int64_t experts = 0;
};
// Returns the parameters of the layer on one GPU.
ShardedParameters ParametersOnGpu(const LayerSpec& layer,
                                  const ParallelLayout& parallel);

// Returns those that are trained, if the layer's weights are: its own, or its
// adapters if the module has some (ModuleSpec::adapter_rank).
ShardedParameters TrainedOnGpu(const LayerSpec& layer,
                               const ParallelLayout& parallel,
                               int64_t adapter_rank);
// Returns whether a layer of a module with adapters has some.
bool HasAdapters(const LayerSpec& layer);

// Return the number of GPUs that hold the same part of the dense weights or of
// the experts.
int64_t DenseReplicas(const ParallelLayout& parallel);
int64_t ExpertReplicas(const ParallelLayout& parallel);
// Returns among how many of `replicas` GPUs that hold the same parameters a
// copy of what is sharded is divided (TrainingSetup::optimizer_group).
int64_t ShardsOf(int64_t replicas, const TrainingSetup& setup);

// Returns the heads of keys and values that the GPUs of a tensor-parallel group
// hold in all: each GPU has at least one, if need be the same as another GPU.
// Low-rank ones are spread to all heads. 0 without attention.
int64_t HeldKvHeads(const AttentionSpec& attention,
                    const ParallelLayout& parallel);

// The shape of a matrix as it is on one GPU, outputs x inputs.
struct MatrixShape {
  int64_t outputs = 0;
  int64_t inputs = 0;
  auto operator<=>(const MatrixShape&) const = default;
};
// Returns the matrices of the layer's products on one GPU, one for all equal
// experts. Without that of a loss head.
std::vector<MatrixShape> MatricesOnGpu(const LayerSpec& layer,
                                       const ParallelLayout& parallel);

// Trained tensors on one GPU.
struct TensorCount {
  int64_t matrices = 0;
  int64_t vectors = 0;
  int64_t largest = 0;  // Parameters of the largest tensor.
  void Add(const TensorCount& other);
};
// The tensors that as many GPUs hold as dense weights, or as experts.
struct LayerTensors {
  TensorCount dense;
  TensorCount experts;
};
// Returns the layer's tensors as plain PyTorch has them: the products into an
// attention are one matrix, the halves of a gated feed-forward two; of low
// ranks, experts and convolutions, one of equal size for each product.
LayerTensors TensorsOnGpu(const LayerSpec& layer,
                          const ParallelLayout& parallel);

// Returns the parameters of a GPU that products of the setup's low precision
// take: matrices of transformer layers without router and modulation.
int64_t CastParameters(const LayerSpec& layer, const ParallelLayout& parallel);

// Bytes per parameter. `weights` are those that products read; fp8 keeps two
// copies (by rows and by columns) in addition to the 16-bit weight.
struct ParameterBytes {
  int64_t weights = 2;
  int64_t gradients = 4;   // Summed in fp32.
  int64_t optimizer = 12;  // fp32 weight and two moments.
};
// Returns the bytes per parameter of a module with this precision.
ParameterBytes BytesOf(Precision precision);

// Returns whether the framework has Megatron-Core's buffers of gradients and
// TransformerEngine's layers.
bool IsMegatron(const TrainingSetup& setup);
// Returns whether the optimizer of 16-bit modules has a copy of the weights in
// fp32.
bool HasFp32Weights(const TrainingSetup& setup);
// Returns the bytes per parameter in which a 16-bit module's gradients are
// summed: in Megatron-Core's buffers those in which they are reduced.
int64_t SummedGradientBytes(const TrainingSetup& setup);
// Returns the bytes per parameter of gradients that cross to other replicas.
int64_t GradientBytes(Precision precision, const TrainingSetup& setup);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_LAYER_WEIGHTS_H_
