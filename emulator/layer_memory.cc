#include "emulator/layer_memory.h"

#include <algorithm>
#include <cmath>

#include "emulator/op_graph.h"

namespace pipeloom::emulator {
namespace {

double Real(int64_t value) { return static_cast<double>(value); }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of the whole layer.
struct Kept {
  double always = 0;          // Needed by the input gradient.
  double product_inputs = 0;  // Needed by the weight gradient only.
  double shared = 0;          // Needed by both.
  double output_gradients = 0;
};

void AddTransformer(const LayerSpec& layer, const WorkShape& shape,
                    Kept* kept) {
  const double t = Real(LayerTokens(layer, shape));
  const double h = Real(layer.hidden);
  const AttentionSpec& a = layer.attention;
  if (a.kind != AttentionKind::kNone) {
    const double query = Real(a.heads * a.head_dim);
    const double qkv = query + 2 * Real(a.kv_heads * a.head_dim);
    kept->always += t * (2 * h + 2 * qkv + 4 * Real(a.heads));
    kept->product_inputs += t * (2 * h + 2 * Real(a.query_rank));
    kept->shared += t * 2 * query;
    kept->output_gradients += t * (2 * qkv + 2 * h);
  }
  const CrossAttentionSpec& c = layer.cross_attention;
  if (c.heads > 0) {
    const double width = Real(c.heads * c.head_dim);
    const double context = Real(shape.context_tokens);
    kept->always += t * 2 * width + context * 4 * width;
    kept->product_inputs += t * 2 * h;
    kept->shared += t * 2 * width;
    kept->output_gradients += t * (2 * width + 2 * h) + context * 4 * width;
  }
  const FfnSpec& f = layer.ffn;
  double inner = Real(f.hidden);
  double copies = 1;  // Of the input, one for each expert a token visits.
  if (f.experts > 0) {
    inner = Real((f.experts_per_token + f.shared_experts) * f.expert_hidden);
    copies += Real(f.experts_per_token);
  }
  if (inner > 0) {
    kept->always += t * (2 * h + (f.gated ? 4 : 2) * inner);
    kept->product_inputs += t * (copies * 2 * h + 2 * inner);
    kept->output_gradients += t * (2 * h + (f.gated ? 4 : 2) * inner);
  }
}

Kept KeptBy(const LayerSpec& layer, const WorkShape& shape) {
  const double t = Real(LayerTokens(layer, shape));
  Kept kept;
  switch (layer.kind) {
    case LayerKind::kTransformer:
      AddTransformer(layer, shape, &kept);
      break;
    case LayerKind::kEmbedding:
      kept.product_inputs = t * 8;  // 64-bit ids.
      break;
    case LayerKind::kLossHead:
      kept.always = t * (2 * Real(layer.hidden) + 4 * Real(layer.vocab));
      kept.product_inputs = t * 2 * Real(layer.hidden);
      kept.output_gradients = t * 4 * Real(layer.vocab);
      break;
    case LayerKind::kLinears:
      for (size_t i = 0; i < layer.linears.size(); ++i) {
        kept.product_inputs += t * 2 * Real(layer.linears[i].in);
        kept.output_gradients += t * 2 * Real(layer.linears[i].out);
        if (i + 1 < layer.linears.size()) {
          kept.always += t * 2 * Real(layer.linears[i].out);
        }
      }
      break;
    case LayerKind::kFixedWork:
      kept.shared =
          layer.fixed_activation_bytes_per_token * t +
          layer.fixed_activation_bytes_per_instance * Real(shape.instances);
      break;
  }
  return kept;
}

}  // namespace

LayerActivations ActivationsOf(const LayerSpec& layer, const WorkShape& shape,
                               const ParallelLayout& parallel) {
  const Kept kept = KeptBy(layer, shape);
  const auto gpus = static_cast<double>(parallel.gpus_per_rank());
  const auto share = [&](double bytes) {
    return Bytes(static_cast<int64_t>(std::ceil(bytes / gpus)));
  };
  LayerActivations result;
  result.trained = share(kept.always + kept.product_inputs + kept.shared);
  result.frozen = share(kept.always + kept.shared);
  result.held_for_weight_grad = std::min(
      result.trained,
      share(kept.product_inputs + kept.shared + kept.output_gradients));
  return result;
}

Bytes InputBytes(const LayerSpec& layer, const WorkShape& shape, int64_t width,
                 const ParallelLayout& parallel) {
  const int64_t tokens = LayerTokens(layer, shape);
  int64_t token_bytes = 2 * (width > 0 ? width : layer.hidden);
  if (layer.kind == LayerKind::kLinears) {
    token_bytes = 2 * layer.linears.front().in;
  } else if (layer.kind == LayerKind::kEmbedding) {
    token_bytes = 8;
  }
  return Bytes(CeilDiv(tokens * token_bytes, parallel.gpus_per_rank()));
}

ShardedParameters ParametersOnGpu(const LayerSpec& layer,
                                  const ParallelLayout& parallel) {
  const int64_t all = Parameters(layer);
  const int64_t vectors = std::min(layer.vector_parameters, all);
  int64_t experts = 0;
  if (layer.kind == LayerKind::kTransformer && layer.ffn.experts > 0) {
    experts = layer.ffn.experts * (layer.ffn.gated ? 3 : 2) * layer.hidden *
              layer.ffn.expert_hidden;
  }
  const int64_t matrices = all - vectors - experts;
  return {.dense = CeilDiv(matrices, parallel.tp) + vectors,
          .experts = CeilDiv(experts, int64_t{parallel.tp} * parallel.ep)};
}

int64_t DenseReplicas(const ParallelLayout& parallel) {
  return int64_t{parallel.dp} * parallel.cp;
}

int64_t ExpertReplicas(const ParallelLayout& parallel) {
  return std::max<int64_t>(DenseReplicas(parallel) / parallel.ep, 1);
}

}  // namespace pipeloom::emulator
