// How a training framework runs a job: which kernels it fuses, what it overlaps
// with compute and what its host costs. Plain data; part of a JobSpec.
//
//                        Megatron-Core   torchtitan    plain PyTorch
//   attention            fused           fused         FlashAttention-2
//   pointwise kernels    fused           fused         eager
//   sequence parallel    yes             yes           no
//   overlap              data            data          data
//   sharding (training)  ZeRO-1          ZeRO-3        none
//   loss                 fused           fp32          fp32
//   vocabulary           padded          exact         exact
//   pipeline's weights   sharded         gathered      -
//
// Megatron-Bridge is Megatron-Core with the settings of NVIDIA's benchmark
// recipes: tokens go to each GPU once, the host launches kernels one by one,
// collectives overlap with compute, gradients are reduced in 16 bits.
//
// docs/emulator_model.md says how each of these changes time and memory.
#ifndef PIPELOOM_IR_JOB_TRAINING_SETUP_H_
#define PIPELOOM_IR_JOB_TRAINING_SETUP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/units.h"

namespace pipeloom {

// The framework that a setup starts from; single fields may then differ.
enum class Framework {
  kMegatronCore,    // With TransformerEngine's fused layers.
  kTorchTitan,      // Compiled, fully sharded.
  kPyTorch,         // Eager, replicated (DistributedDataParallel).
  kMegatronBridge,  // Megatron-Core with NVIDIA's benchmark recipes.
};

// The kernel of the attention.
enum class AttentionKernel {
  kFused,   // Made for the device; attention_efficiency is that of this kernel.
  kFlash2,  // FlashAttention-2: no instructions newer than the A100's.
  kFlash1,  // FlashAttention-1, also as a Triton kernel.
  kUnfused,    // Two products, softmax and dropout, each through memory.
  kEfficient,  // The memory-efficient kernel of PyTorch.
  kMasked,     // One that takes a mask as a tensor: no pair is left out.
};

// Communication that is overlapped with computation.
enum class CommunicationOverlap {
  kNone,  // None: every collective and every send waits.
  kData,  // Gradients and gathered weights overlap with compute.
  kAll,   // Tensor-parallel collectives overlap with products too.
};

// How tokens reach their experts on other GPUs.
enum class ExpertDispatch {
  kEachExpert,  // All-to-all: a copy for each expert.
  // DeepEP, HybridEP: a copy for each GPU that has any of its experts, sent
  // between nodes once for each node.
  kEachGpu,
};

// Kernels that are launched by CUDA graphs instead of the host.
enum class CudaGraphs {
  kNone,
  kLayers,     // All of a layer except its routed experts.
  kIteration,  // The whole step.
};

// How fp8 products scale their operands.
enum class Fp8Recipe {
  kTensor,  // One scale a tensor.
  kBlocks,  // One scale for 32 elements: MXFP8.
  kFp4,     // NVFP4: 4 bits, one scale for 16 elements.
  // NVFP4 without rotation, random rounding and scales in two dimensions.
  kFp4Plain,
};

// The settings of a framework that change time or memory.
struct TrainingSetup {
  Framework framework = Framework::kMegatronCore;
  AttentionKernel attention = AttentionKernel::kFused;
  // Whether norms, residuals, activations and dropout are separate kernels.
  bool eager_pointwise = false;
  // Whether XLA makes the kernels between products (JAX), which move more than
  // eager ones; transformer layers then take no notice of eager_pointwise.
  bool xla_pointwise = false;
  bool sequence_parallel = true;
  // Whether products of transformer layers run in fp8, from weights and
  // activations held in 16 bits. Modules held in fp8 have Precision::kFp8
  // instead.
  bool fp8_products = false;
  // Whether every backward recomputes the core of the attention.
  bool recompute_attention = false;
  CommunicationOverlap overlap = CommunicationOverlap::kData;
  int32_t gradient_bytes = 4;  // Per element, when gradients are reduced.
  // Host time to launch a kernel; a pass lasts at least this long per kernel.
  Duration host_per_kernel{};
  double stretch = 1;  // Factor on the time of everything the GPU does.
  Fp8Recipe fp8_recipe = Fp8Recipe::kTensor;  // For fp8_products.
  ExpertDispatch dispatch = ExpertDispatch::kEachExpert;
  // Whether dispatch and combine overlap with another microbatch's compute.
  bool overlap_dispatch = false;
  // Whether a rank can run a forward together with a backward of another
  // microbatch on two streams, as DualPipe does. What `overlap_dispatch`
  // overlaps is not overlapped again.
  bool paired_forwards = false;
  // Tokens of the fullest GPU's experts, relative to the mean; at least 1.
  double expert_imbalance = 1;
  CudaGraphs graphs = CudaGraphs::kNone;
  // Whether the cross-entropy runs on an fp32 copy of the logits, in kernels of
  // its own: the log-softmax is kept. Its backward holds two fp32 gradients of
  // the logits at once, except in Megatron-Core, whose loss works in place.
  bool fp32_loss = false;
  // Whether a dense layer keeps only its input, its attention's output and the
  // results of its first, third, ... product, and its backward computes the
  // rest again: torchtitan's selective checkpoints by operator.
  bool checkpoint_operators = false;
  // Whether, with ZeRO-3 and more than one pipeline rank, weights stay gathered
  // for the whole step and gradients whole in fp32 until its last microbatch.
  // Changes memory only.
  bool gathered_in_pipeline = false;
  // Whether, with ZeRO-3, the sharded weights are the optimizer's own in fp32,
  // cast when they are gathered, as FSDP2 has them: no copy in 16 bits is kept.
  // Changes memory only.
  bool fp32_shards = false;
  // Whether one kernel runs an expert's products, biases and activation.
  // Otherwise biases and limits (FfnSpec) are kernels of their own.
  bool fused_experts = false;
  // Whether the core of the attention takes and gives fp8; only if it is fused
  // and products are in fp8.
  bool fp8_attention = false;
  // Whether tensor-parallel gathers of the inputs of low-precision products
  // carry one byte an element.
  bool fp8_gathers = false;
  int32_t weight_bytes = 2;  // Per element, when weights are gathered.
  // Deviation of the speeds of GPUs, relative to their mean. The slowest of all
  // GPUs of the job, which wait for each other, determines the time of passes.
  double straggle = 0;
  Duration host_per_step{};  // Host time in which the GPU waits, once a step.
  // Share of the time of hidden reductions of gradients and gathers of weights
  // that the passes lose to them: multiprocessors and bandwidth. In [0, 1]. By
  // default that of fully sharded weights (framework_price.cc).
  double update_contention = 0.5;
  // Whether products of weight gradients write 16 bits that kernels of their
  // own add to the gradients, as Megatron-Core does without fused accumulation.
  bool sum_gradients_apart = false;
  // Per element of transformer layers' weights in 16-bit modules, as they are
  // held between steps: 1 where they are fp8. Changes memory only.
  int32_t held_weight_bytes = 2;
  // Per trained element of 16-bit modules: the fp32 weight and two moments, 10
  // where the weight's upper half is the 16-bit weight itself, 4 of moments in
  // 16 bits, 0 of none.
  int32_t optimizer_bytes = 12;
  // Whether the inputs of feed-forward activation functions are kept in fp8, as
  // Megatron-Core's activation_func_fp8_input_store has it. Changes memory
  // only.
  bool fp8_activation_inputs = false;
  // Whether tensor-parallel gathers are operators of PyTorch, which keeps what
  // they give for the weight gradient, and with eager_pointwise also activated
  // gates, rotated queries and keys. Otherwise they run again, and those
  // kernels are fused. Changes memory only.
  bool keeps_gathered = false;
  // Neighbouring replicas that hold one copy of the state which ZeRO divides
  // over them (with ZeRO-3: hybrid sharding): gradients are then all-reduced
  // over all replicas, weights gathered in the group. 0: all replicas, one
  // copy.
  int32_t optimizer_group = 0;
  // Whether all weights that ZeRO-1 and -2 gather are there before a step's
  // first pass; otherwise each is gathered behind the passes before it is
  // needed.
  bool gathers_wait = false;
  // Whether ZeRO-1 divides the optimizer's state by whole tensors, each of
  // which belongs to one replica: gradients are all-reduced, and the owners
  // broadcast their weights one after another (InternEvo). Otherwise each
  // replica has an equal share of all tensors.
  bool broadcasts_weights = false;
  // Least parameters of a bucket, which is reduced and gathered by itself,
  // where updates overlap. 0: Megatron-Core's 40 million, or a million for each
  // replica if that is more.
  int64_t bucket_parameters = 0;
  // Whether the framework pads the vocabulary, so that products of the loss
  // head run at full speed whatever its width is. Changes time only.
  bool pads_vocabulary = true;
  // Whether, without sequence parallelism, each GPU of a tensor-parallel group
  // sends its part of what a stage hands on to the next, which gathers it
  // (DeepSpeed). Otherwise each sends all of it, as Megatron-Core does.
  bool scattered_sends = false;
  bool operator==(const TrainingSetup&) const = default;
};

// Returns the framework's default setup.
TrainingSetup SetupOf(Framework framework);

// Checks the setup. Returns InvalidArgument that names the field, the value and
// what is allowed.
absl::Status ValidateTrainingSetup(const TrainingSetup& setup);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_TRAINING_SETUP_H_
