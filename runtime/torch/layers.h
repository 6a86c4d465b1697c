// The layers of a model spec, computed with libtorch.
//
// The rows of all sequences of a sub-microbatch stand one after another;
// attention stays within each sequence. Norms are RMS norms, positions are
// rotary, products have no bias.
//
// A product's weight gradient can be put off (Zero Bubble Pipeline Parallelism,
// Qi et al., ICLR 2024, section 2): with a WeightGradients object the backward
// pass only keeps the inputs of these gradients, and Run computes them later.
// Gradients of norms, tables and embeddings are cheap and always computed in
// the backward pass.
//
// Threads: a layer is used by one thread at a time.
#ifndef PIPELOOM_RUNTIME_TORCH_LAYERS_H_
#define PIPELOOM_RUNTIME_TORCH_LAYERS_H_

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "ir/job/model_spec.h"
#include "ir/operator_group.h"
#include "runtime/torch/made_again.h"
#include "runtime/torch/torch_setup.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::runtime {

// Return the device of all tensors and the type of activations.
at::Device TorchPlace(const TorchOptions& options);
at::ScalarType TorchType(const TorchOptions& options);

// Put-off weight gradients of one stage on one sub-microbatch.
class WeightGradients {
 public:
  void Add(at::Tensor weight, at::Tensor input, at::Tensor gradient);
  // Computes the put-off gradients, adds them to the weights' gradients and
  // forgets them.
  void Run();

 private:
  struct Product {
    at::Tensor weight, input, gradient;
  };
  std::vector<Product> products_{};
};

// The tensors that one layer hands to the next. For a module's first layer,
// `rows` are those that other modules feed.
struct TorchState {
  at::Tensor rows{};     // Undefined if there are none.
  at::Tensor context{};  // For cross-attention; undefined if there is none.
};

struct Parameter {
  std::string name{};
  // A leaf of the graph, in fp64 with TorchPrecision::kFp64, else in fp32.
  at::Tensor value{};
};

// Arguments of a layer's forward, and the loss so far.
struct LayerRun {
  const TorchSequences* sequences = nullptr;
  int64_t loss_rows = 1;  // The divisor of a loss.
  // Receives put-off weight gradients; null: none are put off.
  WeightGradients* put_off = nullptr;
  at::Tensor loss{};       // Layers add to it; undefined if there is none yet.
  OperatorGroups again{};  // Results thrown away and made again.
};

// One layer with its parameters.
class TorchLayer {
 public:
  // `index` is the layer's index in `module`; `feeds` says whether the module
  // feeds other modules.
  TorchLayer(const ModuleSpec& module, LayerId index, bool feeds, bool frozen,
             const TorchOptions& options);

  // Runs the layer's forward. REQUIRES: if `run->again` is not empty,
  // UseAgainEngine() was called.
  TorchState Forward(TorchState in, LayerRun* run) const;
  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  // Adds a normally distributed parameter; returns its index in parameters_.
  size_t Add(const std::string& name, at::IntArrayRef shape, double scale,
             double mean = 0);
  const at::Tensor& P(size_t index) const { return parameters_[index].value; }
  at::Tensor Product(const at::Tensor& x, size_t weight, LayerRun* run) const;
  at::Tensor Norm(const at::Tensor& x, size_t weight) const;
  at::Tensor Seeded(const TorchSequences& sequences, int64_t width,
                    bool output) const;
  at::Tensor Labels(const TorchSequences& sequences) const;
  at::Tensor Embed(const at::Tensor& fed, LayerRun* run) const;
  at::Tensor Linears(at::Tensor x, LayerRun* run) const;
  at::Tensor Transformer(at::Tensor x, const at::Tensor& context,
                         LayerRun* run) const;
  at::Tensor Attention(const at::Tensor& x, LayerRun* run) const;
  // Attends within each sequence.
  at::Tensor CoreAttention(const AgainTensors& qkv, const LayerRun& run) const;
  at::Tensor CoreCrossAttention(const AgainTensors& qkv,
                                const LayerRun& run) const;
  at::Tensor FeedForward(const at::Tensor& x, LayerRun* run) const;
  at::Tensor CrossAttention(const at::Tensor& x, const at::Tensor& context,
                            LayerRun* run) const;
  std::vector<at::Tensor> Modulation(LayerRun* run) const;
  at::Tensor Merge(const at::Tensor& x, const TorchSequences& sequences,
                   int64_t wanted_width) const;
  void AddLoss(const at::Tensor& sum, LayerRun* run) const;

  LayerSpec spec_;
  int64_t width_in_ = 0;
  std::string prefix_;
  uint64_t seed_ = 0;
  bool first_ = false;
  // Tokens are merged to output tokens before this layer's own work, or after
  // it, in the last layer of a module that has not merged them before.
  bool merges_ = false;
  bool merges_at_end_ = false;
  // The module ends here without a loss head and feeds no other.
  bool squared_error_ = false;
  bool frozen_ = false;
  bool merged_before_ = false;
  at::ScalarType type_{};
  at::Device device_;
  std::vector<Parameter> parameters_{};
  // Indices in parameters_, for the parameters that the layer's kind has.
  size_t norm1_ = 0, query_ = 0, key_ = 0, value_ = 0, output_ = 0;
  size_t cross_norm_ = 0, cross_query_ = 0, cross_key_ = 0, cross_value_ = 0,
         cross_output_ = 0;
  size_t norm2_ = 0, up_ = 0, gate_ = 0, down_ = 0;
  size_t modulation_ = 0;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_LAYERS_H_
