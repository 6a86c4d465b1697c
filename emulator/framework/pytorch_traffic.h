// Kernels of a layer in plain PyTorch, as Hugging Face's transformers write a
// Llama-like layer and its loss, and diffusers a layer of convolutions: each
// operation of the Python code is a kernel.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_PYTORCH_TRAFFIC_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_PYTORCH_TRAFFIC_H_

#include "base/units.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"

namespace pipeloom::emulator {

// Bytes of one pass in addition to those of fused kernels. Some kernels move
// them slower than the memory allows, because they broadcast an operand, cast
// to fp32 or read a view that is not contiguous: their bytes are `strided`.
struct EagerBytes {
  double streamed = 0;
  double strided = 0;
};

// Both passes of a layer.
struct EagerPasses {
  EagerBytes forward;
  EagerBytes backward;  // For the input gradient.
};

// Returns the bytes that one GPU moves for `tokens` tokens in a transformer
// layer with gated feed-forward or adaptive norms, or in a loss head, whose
// loss is in fp32 or in 16 bits.
EagerPasses PyTorchBytes(const LayerSpec& layer, double tokens,
                         const ParallelLayout& parallel, bool fp32_loss);

// Returns the bytes that one GPU moves for `tokens` tokens in a layer of
// convolutions under automatic mixed precision.
EagerPasses ConvolutionBytes(const LayerSpec& layer, double tokens);

// Returns the bytes that one GPU moves in a layer with experts where PyTorch's
// indexing sorts rows by experts: Megatron-Core's dispatcher of 2024 that
// gathers tokens, which needs no all-to-all.
EagerPasses IndexedRowBytes(const LayerSpec& layer, double tokens,
                            const ParallelLayout& parallel);

// Kernels that the host launches for a layer.
struct EagerLaunches {
  double forward = 0;
  double backward = 0;  // For both gradients.
};

// Returns the kernels of a transformer layer for `tokens` tokens of a GPU.
// Attention over windows calls its kernel once a window.
EagerLaunches PyTorchLaunches(const LayerSpec& layer, double tokens);

// Returns the kernels of a layer of convolutions.
EagerLaunches ConvolutionLaunches(const LayerSpec& layer);

// Returns how many kernels rotate queries and keys where separate PyTorch
// operators do it, counted in kernels that take the host `per_kernel` each. One
// operator takes the host `per_kernel`, but no longer than in plain PyTorch.
// With causal attention each of the `packed` sequences, which are samples with
// images, is rotated separately. 0: a batch of text, which is rotated at once.
EagerLaunches RotationLaunches(const AttentionSpec& attention, double packed,
                               Duration per_kernel);

// Returns the bytes a second of kernels that move strided bytes: what their
// index arithmetic leaves of the memory's bandwidth.
double StridedRate(const DeviceSpec& device);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_PYTORCH_TRAFFIC_H_
