#include "emulator/stage/layer_memory.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric.h"
#include "emulator/framework/score_kernels.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {
namespace {

// Bytes of the whole layer at 16 bits, by which gradient reads them.
struct Kept {
  double always = 0;          // Read by the input gradient.
  double product_inputs = 0;  // Read by the weight gradient only.
  double shared = 0;          // Read by both.
  double output_gradients = 0;
  // Read by the input gradient; as large in any precision: 32 bits, a byte.
  double fp32 = 0;
  double masks = 0;

  void Add(const Kept& other) {
    always += other.always;
    product_inputs += other.product_inputs;
    shared += other.shared;
    output_gradients += other.output_gradients;
    fp32 += other.fp32;
    masks += other.masks;
  }
};

// The same by the group that recomputes them.
struct KeptParts {
  Kept rest{};  // Recomputed by no group.
  std::array<Kept, kNumOperatorGroups> groups{};
  // Results of projections whose inputs a frozen layer does not keep (tokens
  // sent to experts, the input of cross-attention): only a trained layer can
  // recompute them.
  Kept trained_projections{};

  Kept& of(OperatorGroup group) { return groups[static_cast<size_t>(group)]; }
};

void AddAttention(const LayerSpec& layer, double t,
                  const ParallelLayout& parallel, KeptParts* kept) {
  const AttentionSpec& a = layer.attention;
  const double h = Real(layer.hidden);
  const double query = Real(a.heads * a.head_dim);
  const double output = Real(a.heads * a.value_width());
  const double kv =
      Real(HeldKvHeads(a, parallel) * (a.head_dim + a.value_width()));
  Kept& norms = kept->of(OperatorGroup::kNorms);
  Kept& core = kept->of(OperatorGroup::kCoreAttention);
  kept->rest.always += t * 2 * h;
  kept->of(OperatorGroup::kProjections).always += t * (2 * query + 2 * kv);
  core.fp32 += t * 4 * Real(a.heads);
  norms.product_inputs += t * 2 * h;
  core.shared += t * 2 * output;
  kept->rest.output_gradients += t * (2 * query + 2 * kv + 2 * h);
  if (a.output_gate) {
    // The gate, and its product with the output, which the next one takes.
    kept->of(OperatorGroup::kProjections).always += t * 2 * output;
    core.always += t * 2 * output;
    kept->rest.output_gradients += t * 2 * output;
  }
  // The norm of a low rank keeps its input; the product after it, its own.
  if (a.query_rank > 0) {
    kept->rest.always += t * 2 * Real(a.query_rank);
    norms.product_inputs += t * 2 * Real(a.query_rank);
    kept->rest.output_gradients += t * 2 * Real(a.query_rank);
  }
  if (a.kv_rank > 0) {
    kept->rest.always += t * 2 * Real(a.kv_rank + a.rope_dim);
    norms.product_inputs += t * 2 * Real(a.kv_rank);
    kept->rest.output_gradients += t * 2 * Real(a.kv_rank + a.rope_dim);
  }
  // The output is kept twice: as attention made it and as the product takes it.
  if (parallel.cp > 1 && parallel.context == ContextParallelism::kAllToAll) {
    core.always += t * 2 * output;
  }
}

// Adds what the kernels of the token mixers keep (emulator/ops/mixer_ops.cc).
void AddMixer(const LayerSpec& layer, double t, KeptParts* kept) {
  const double h = Real(layer.hidden);
  const double mixed = Real(MixerOutputs(layer));
  Kept& norms = kept->of(OperatorGroup::kNorms);
  Kept& core = kept->of(OperatorGroup::kCoreAttention);
  Kept& projections = kept->of(OperatorGroup::kProjections);
  kept->rest.always += t * 2 * h;
  norms.product_inputs += t * (2 * h + 2 * mixed);
  kept->rest.output_gradients += t * 2 * (Real(MixerInputs(layer)) + h);
  if (layer.state_space.heads > 0) {
    // All that the product made; the result with and without the gate.
    projections.always += t * 2 * Real(MixerInputs(layer));
    core.always += t * 4 * mixed;
    return;
  }
  const DeltaNetSpec& d = layer.delta_net;
  const double heads = Real(d.value_heads);
  const double keys = Real(d.key_heads * d.key_dim);
  // Inputs of the convolution; the gate's copy.
  projections.always += t * 2 * (Real(d.convolved()) + mixed);
  // Normed queries and keys, and their copies for each value head; values; the
  // inverse of each chunk; the result before and after its norm.
  core.always +=
      t * 2 *
      (2 * keys + mixed + heads * Real(d.chunk) + mixed +
       (d.value_heads > d.key_heads ? 2 * heads * Real(d.key_dim) : 0));
  core.fp32 += t * 8 * heads;  // Decays, sums of decays.
  norms.always += t * 2 * mixed;
}

void AddFeedForward(const LayerSpec& layer, double t,
                    const ParallelLayout& parallel, bool fp8_inputs,
                    double expert_imbalance, KeptParts* kept) {
  const FfnSpec& f = layer.ffn;
  const double h = Real(layer.hidden);
  double inner = Real(f.hidden);
  // Rows of routed experts for each token: one for each expert that it visits,
  // and more on the GPU whose experts get most.
  double rows = 0;
  if (f.experts > 0) {
    rows = Real(f.experts_per_token) * expert_imbalance;
    inner = (rows + Real(f.shared_experts)) * Real(f.expert_hidden);
    // Scores, probabilities and choice.
    kept->rest.fp32 += t * 12 * Real(f.experts);
  }
  if (inner <= 0) return;
  const double before = (f.gated ? 4 : 2) * inner;
  const double kept_before = fp8_inputs ? before / 2 : before;
  kept->rest.always += t * 2 * h;
  kept->of(OperatorGroup::kNorms).product_inputs += t * 2 * h;
  // Each GPU that has a part of an expert keeps the whole of its rows.
  const double holders = parallel.expert_tp == 1 ? 1 : Real(parallel.tp);
  kept->rest.product_inputs +=
      holders * t * rows * 2 * Real(f.row_width(layer.hidden));
  if (f.latent > 0) {
    kept->rest.product_inputs += t * 2 * Real(f.latent);
    kept->rest.output_gradients += t * 2 * Real(f.latent);
  }
  if (f.experts > 0) {
    kept->trained_projections.always += t * kept_before;
    kept->of(OperatorGroup::kMoeActivations).product_inputs += t * 2 * inner;
  } else {
    kept->of(OperatorGroup::kProjections).always += t * kept_before;
    kept->of(OperatorGroup::kActivations).product_inputs += t * 2 * inner;
  }
  kept->rest.output_gradients += t * (2 * h + before);
}

void AddTransformer(const LayerSpec& layer, const WorkShape& shape,
                    const ParallelLayout& parallel, bool fp8_inputs,
                    double expert_imbalance, KeptParts* kept) {
  const double t = Real(LayerTokens(layer, shape));
  const double h = Real(layer.hidden);
  int blocks = 0;
  if (layer.attention.kind != AttentionKind::kNone) {
    AddAttention(layer, t, parallel, kept);
    ++blocks;
  } else if (HasMixer(layer)) {
    AddMixer(layer, t, kept);
    ++blocks;
  }
  const CrossAttentionSpec& c = layer.cross_attention;
  if (c.heads > 0) {
    const double width = Real(c.heads * c.head_dim);
    const double context = Real(ContextTokens(layer, shape));
    kept->trained_projections.always += t * 2 * width + context * 4 * width;
    kept->rest.product_inputs += t * 2 * h;
    kept->of(OperatorGroup::kCoreAttention).shared += t * 2 * width;
    kept->rest.output_gradients +=
        t * (2 * width + 2 * h) + context * 4 * width;
  }
  AddFeedForward(layer, t, parallel, fp8_inputs, expert_imbalance, kept);
  if (layer.ffn.experts > 0 || layer.ffn.hidden > 0) ++blocks;
  if (layer.dropout) kept->rest.masks += t * h * blocks;
  if (layer.modulation.vectors > 0) {
    // The norm's output for the gradient of the scale; the block's output for
    // that of the gate.
    kept->of(OperatorGroup::kNorms).always += t * 2 * h * blocks;
    kept->rest.always += t * 2 * h * blocks;
  }
}

KeptParts KeptBy(const LayerSpec& layer, const WorkShape& shape,
                 const ParallelLayout& parallel, bool fp8_inputs,
                 double expert_imbalance) {
  const double t = Real(LayerTokens(layer, shape));
  KeptParts kept;
  switch (layer.kind) {
    case LayerKind::kTransformer:
      AddTransformer(layer, shape, parallel, fp8_inputs, expert_imbalance,
                     &kept);
      break;
    case LayerKind::kEmbedding:
      kept.rest.product_inputs = t * 8;  // 64-bit ids.
      if (layer.dropout) kept.rest.masks = t * Real(layer.hidden);
      break;
    case LayerKind::kLossHead:
      // The fused cross-entropy writes the gradient over the logits.
      kept.rest.always = t * 2 * Real(layer.hidden);
      kept.of(OperatorGroup::kNorms).product_inputs =
          t * 2 * Real(layer.hidden);
      kept.rest.shared = t * 2 * Real(layer.vocab);
      break;
    case LayerKind::kLinears:
      for (size_t i = 0; i < layer.linears.size(); ++i) {
        Kept& input = i == 0 ? kept.rest : kept.of(OperatorGroup::kActivations);
        input.product_inputs += t * 2 * Real(layer.linears[i].in);
        kept.rest.output_gradients += t * 2 * Real(layer.linears[i].out);
        if (i + 1 < layer.linears.size()) {
          kept.of(OperatorGroup::kProjections).always +=
              t * 2 * Real(layer.linears[i].out);
        }
      }
      break;
    case LayerKind::kFixedWork:
      kept.rest.shared =
          layer.fixed_activation_bytes_per_token * t +
          layer.fixed_activation_bytes_per_instance * Real(shape.instances);
      break;
    case LayerKind::kConvolutions:
      // Inputs of norm, activation and convolution.
      for (const ConvolutionSpec& c : layer.convolutions) {
        const double positions = t * c.scale * c.scale;
        kept.rest.always += positions * 2 * Real(c.in);
        kept.of(OperatorGroup::kNorms).always += positions * 2 * Real(c.in);
        kept.of(OperatorGroup::kActivations).product_inputs +=
            positions * 2 * Real(c.in);
        kept.rest.output_gradients += positions * 2 * Real(c.out);
      }
      break;
  }
  return kept;
}

// Converts the bytes to a precision. fp8 products keep their inputs in one
// byte; inputs that others read too are kept as an additional copy.
void Convert(Precision precision, Kept* kept) {
  if (precision == Precision::kFp8) {
    kept->product_inputs = kept->product_inputs / 2 + kept->shared / 2;
  }
  if (precision == Precision::kFp32) {
    for (double* bytes : {&kept->always, &kept->product_inputs, &kept->shared,
                          &kept->output_gradients}) {
      *bytes *= 2;
    }
  }
}

// Returns what a layer keeps whose activation and rotation are operators of
// PyTorch: the activated gate, which is multiplied by the other half; rotated
// queries and keys, as values are a view of the product that made all three.
// Plain PyTorch has a product for each and frees queries and keys.
double OperatorBytes(const LayerSpec& layer, const TrainingSetup& setup,
                     double tokens, const ParallelLayout& parallel) {
  const AttentionSpec& a = layer.attention;
  double width = 0;
  const FfnSpec& f = layer.ffn;
  if (f.gated && f.experts == 0) width += Real(f.hidden);
  if (f.gated && f.experts > 0 && setup.framework == Framework::kPyTorch) {
    // Also the experts' results, for the gradients of the router's weights.
    width += Real((f.experts_per_token + f.shared_experts) * f.expert_hidden +
                  f.experts_per_token * f.row_width(layer.hidden));
  }
  if (IsMegatron(setup) && a.kind != AttentionKind::kNone &&
      a.query_rank == 0 && a.kv_rank == 0) {
    width += Real((a.heads + HeldKvHeads(a, parallel)) * a.head_dim);
  }
  return 2 * tokens * width / parallel.tp;
}

// Returns 1, or 0.5 for a layer of one block.
double ShareOfTwoBlocks(const LayerSpec& layer) {
  return BlocksOf(layer) < 2 ? 0.5 : 1;
}

// Bytes an element that an RMS norm of transformers keeps (LlamaRMSNorm and its
// like): the input in fp32, which its square and its product read, and for the
// gradient of the weight the normed value in 16 bits.
constexpr double kRmsNorm = 4;
constexpr double kTrainedRmsNorm = 6;

// Returns what a layer of plain PyTorch keeps of its RMS norms, beyond the
// norms' inputs and outputs that are counted for every layer: a block's norm
// keeps no 16-bit input, one of queries or keys hands its output on.
double NormBytes(const LayerSpec& layer, const TrainingSetup& setup,
                 double tokens, const ParallelLayout& parallel, bool trained) {
  const AttentionSpec& a = layer.attention;
  const double norm = trained ? kTrainedRmsNorm : kRmsNorm;
  const double parts = setup.sequence_parallel ? parallel.tp : 1;
  double bytes = 0;
  if (layer.kind == LayerKind::kLossHead) {
    // A layer norm, one kernel, has a bias too.
    const bool is_rms = layer.vector_parameters < 2 * layer.hidden;
    bytes = is_rms ? (norm - 2) * Real(layer.hidden) / parts : 0;
  } else if (layer.ffn.gated && layer.modulation.vectors == 0 &&
             layer.cross_attention.heads == 0) {
    bytes =
        (norm - 2) * 2 * Real(layer.hidden) * ShareOfTwoBlocks(layer) / parts;
    if (a.kind != AttentionKind::kNone && a.query_key_norms) {
      bytes += norm * Real((a.heads + HeldKvHeads(a, parallel)) * a.head_dim) /
               parallel.tp;
    }
  }
  return bytes * tokens;
}

}  // namespace

LayerActivations ActivationsOf(const LayerSpec& layer, const WorkShape& shape,
                               const ParallelLayout& parallel,
                               Precision precision, bool fp8_activation_inputs,
                               double expert_imbalance) {
  const KeptParts parts =
      KeptBy(layer, shape, parallel, fp8_activation_inputs, expert_imbalance);
  const auto gpus = static_cast<double>(parallel.gpus_per_rank());
  const auto share = [&](double bytes) {
    return Bytes(static_cast<int64_t>(std::ceil(bytes / gpus)));
  };
  Kept kept = parts.rest;
  kept.Add(parts.trained_projections);
  for (const Kept& group : parts.groups) kept.Add(group);
  Convert(precision, &kept);
  kept.always += kept.fp32 + kept.masks;
  LayerActivations result;
  result.trained = share(kept.always + kept.product_inputs + kept.shared);
  result.frozen = share(kept.always + kept.shared);
  result.held_for_weight_grad = std::min(
      result.trained,
      share(kept.product_inputs + kept.shared + kept.output_gradients));
  for (const OperatorGroup g : kAllOperatorGroups) {
    const auto index = static_cast<size_t>(g);
    Kept frozen = parts.groups[index];
    Kept trained = frozen;
    if (g == OperatorGroup::kProjections)
      trained.Add(parts.trained_projections);
    Convert(precision, &frozen);
    Convert(precision, &trained);
    const auto part = [&](double bytes) {
      return Bytes(static_cast<int64_t>(std::floor(bytes / gpus)));
    };
    result.groups[index] = {
        .trained = part(trained.always + trained.fp32 + trained.product_inputs +
                        trained.shared),
        .frozen = part(frozen.always + frozen.fp32 + frozen.shared)};
  }
  return result;
}

Bytes AdapterBytes(const LayerSpec& layer, const WorkShape& shape,
                   const ParallelLayout& parallel, int64_t adapter_rank) {
  if (adapter_rank == 0 || !HasAdapters(layer)) return Bytes(0);
  const int64_t inputs = layer.hidden + MixerOutputs(layer);
  return Bytes(
      CeilDiv(LayerTokens(layer, shape) * (3 * inputs + 2 * 2 * adapter_rank),
              parallel.gpus_per_rank()));
}

bool ChecksOperators(const LayerSpec& layer) {
  return layer.kind == LayerKind::kTransformer &&
         layer.attention.kind != AttentionKind::kNone &&
         layer.attention.query_rank == 0 && layer.attention.kv_rank == 0 &&
         !layer.attention.output_gate && layer.cross_attention.heads == 0 &&
         layer.ffn.experts == 0 && layer.ffn.hidden > 0;
}

Bytes OperatorCheckpointBytes(const LayerSpec& layer, const WorkShape& shape,
                              const ParallelLayout& parallel, bool keep_last) {
  const AttentionSpec& a = layer.attention;
  const int64_t output = a.heads * a.value_width();
  const int64_t kv_heads = HeldKvHeads(a, parallel);
  std::vector<int64_t> products = {a.heads * a.head_dim, kv_heads * a.head_dim,
                                   kv_heads * a.value_width(), layer.hidden};
  if (layer.ffn.gated) products.push_back(layer.ffn.hidden);
  products.push_back(layer.ffn.hidden);
  if (keep_last) products.push_back(layer.hidden);
  int64_t elements = layer.hidden + output;
  // The attention's output product ends in a reduce-scatter, which is kept.
  if (parallel.tp > 1) elements += layer.hidden;
  for (size_t i = 0; i < products.size(); i += 2) elements += products[i];
  return Bytes(CeilDiv(LayerTokens(layer, shape) * (2 * elements + 4 * a.heads),
                       parallel.gpus_per_rank()));
}

Bytes InputBytes(const LayerSpec& layer, const WorkShape& shape, int64_t width,
                 const ParallelLayout& parallel, Precision precision) {
  const int64_t tokens =
      LayerTokens(layer, shape) * (precision == Precision::kFp32 ? 2 : 1);
  int64_t token_bytes = 2 * (width > 0 ? width : layer.hidden);
  if (layer.kind == LayerKind::kLinears) {
    token_bytes = 2 * layer.linears.front().in;
  } else if (layer.kind == LayerKind::kConvolutions) {
    token_bytes = 2 * layer.convolutions.front().in;
  } else if (layer.kind == LayerKind::kEmbedding) {
    token_bytes = 8;
  }
  return Bytes(CeilDiv(tokens * token_bytes, parallel.gpus_per_rank()));
}

Bytes AttentionCoreBytes(const LayerSpec& layer, const WorkShape& shape,
                         const ParallelLayout& parallel) {
  if (layer.kind != LayerKind::kTransformer ||
      layer.attention.kind == AttentionKind::kNone) {
    return Bytes(0);
  }
  return Bytes(LayerTokens(layer, shape) * 4 * layer.attention.heads /
               parallel.gpus_per_rank());
}

UnfusedBytes UnfusedBytesOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup, bool trained) {
  UnfusedBytes bytes;
  const bool plain =
      setup.eager_pointwise && setup.framework == Framework::kPyTorch;
  if (layer.kind != LayerKind::kTransformer) {
    if (plain && layer.kind == LayerKind::kLossHead) {
      bytes.kept = Bytes(static_cast<int64_t>(
          NormBytes(layer, setup, Real(LayerTokens(layer, shape)) / parallel.cp,
                    parallel, trained)));
    }
    return bytes;
  }
  double scores = 0;
  double kept = 0;
  double held = 0;
  if (setup.attention == AttentionKernel::kUnfused &&
      layer.attention.kind != AttentionKind::kNone &&
      !setup.recompute_attention) {
    const double heads =
        Real(CeilDiv(layer.attention.heads, int64_t{parallel.tp}));
    scores = ScoreKernelsOf(layer, shape, parallel, setup).kept_bytes * heads *
             shape.squared_tokens / parallel.cp;
  }
  if (!setup.sequence_parallel && parallel.tp > 1) {
    // Inputs and, where weights are trained, outputs of both blocks' norms;
    // masks of dropout.
    const double elements = Real(LayerTokens(layer, shape)) *
                            Real(layer.hidden) / parallel.cp *
                            (1 - 1.0 / parallel.tp) * ShareOfTwoBlocks(layer);
    kept += (layer.dropout ? 6 : 4) * elements;
    if (trained) held += 4 * elements;
  }
  const double tokens = Real(LayerTokens(layer, shape)) / parallel.cp;
  if (setup.keeps_gathered && setup.sequence_parallel && trained) {
    // The input of the first product of both blocks.
    held += 4 * tokens * Real(layer.hidden) * (1 - 1.0 / parallel.tp) *
            ShareOfTwoBlocks(layer);
  }
  if (setup.eager_pointwise && (setup.keeps_gathered || plain)) {
    kept += OperatorBytes(layer, setup, tokens, parallel);
  }
  const AttentionSpec& a = layer.attention;
  if (plain) kept += NormBytes(layer, setup, tokens, parallel, trained);
  if (plain && setup.attention == AttentionKernel::kMasked &&
      a.kind != AttentionKind::kNone) {
    // Keys and values are repeated for each head of queries where there is a
    // mask (transformers, sdpa_attention.py: use_gqa_in_sdpa).
    kept += 2 * tokens *
            Real((a.heads - std::min(HeldKvHeads(a, parallel), a.heads)) *
                 (a.head_dim + a.value_width())) /
            parallel.tp;
  }
  if (IsMegatron(setup) && a.kind != AttentionKind::kNone &&
      a.query_key_norms) {
    // Inputs of the norms of queries and keys: copies out of the product that
    // made both with the values (TransformerEngine, ops/basic/rmsnorm.py).
    kept += 2 * tokens *
            Real((a.heads + HeldKvHeads(a, parallel)) * a.head_dim) /
            parallel.tp;
  }
  bytes.held_for_weight_grad = Bytes(static_cast<int64_t>(held));
  bytes.scores = Bytes(static_cast<int64_t>(scores));
  bytes.kept = bytes.scores + Bytes(static_cast<int64_t>(kept)) +
               bytes.held_for_weight_grad;
  return bytes;
}

}  // namespace pipeloom::emulator
