#include "emulator/stage/layer_weights.h"

#include <algorithm>

#include "base/numeric.h"

namespace pipeloom::emulator {
namespace {

void AddAttention(const LayerSpec& layer, int64_t tp,
                  std::vector<MatrixShape>* out) {
  const AttentionSpec& a = layer.attention;
  const int64_t h = layer.hidden;
  const int64_t query = CeilDiv(a.heads * a.head_dim, tp);
  const int64_t kv = CeilDiv(a.kv_heads * (a.head_dim + a.value_width()), tp);
  if (a.query_rank > 0 || a.kv_rank > 0) {
    if (a.query_rank > 0) {
      out->push_back({a.query_rank, h});
      out->push_back({query, a.query_rank});
    } else {
      out->push_back({query, h});
    }
    if (a.kv_rank > 0) {
      out->push_back({a.kv_rank + a.rope_dim, h});
      out->push_back(
          {CeilDiv(a.heads * (a.head_dim - a.rope_dim + a.value_width()), tp),
           a.kv_rank});
    } else {
      out->push_back({kv, h});
    }
  } else {
    const int64_t gate =
        a.output_gate ? CeilDiv(a.heads * a.value_width(), tp) : 0;
    out->push_back({query + gate + kv, h});
  }
  out->push_back({h, CeilDiv(a.mixed(), tp)});
}

}  // namespace

ShardedParameters ParametersOnGpu(const LayerSpec& layer,
                                  const ParallelLayout& parallel) {
  const int64_t all = Parameters(layer);
  const int64_t vectors = std::min(layer.vector_parameters, all);
  int64_t experts = 0;
  int64_t whole = 0;
  if (layer.kind == LayerKind::kTransformer) {
    const AttentionSpec& a = layer.attention;
    if (a.kind != AttentionKind::kNone && a.kv_rank > 0) {
      whole = layer.hidden * (a.query_rank + a.kv_rank + a.rope_dim);
    } else if (a.kind != AttentionKind::kNone) {
      whole = layer.hidden * a.query_rank;
    }
    if (layer.ffn.experts > 0) {
      const FfnSpec& f = layer.ffn;
      experts = f.experts * (f.gated ? 3 : 2) * f.row_width(layer.hidden) *
                f.expert_hidden;
      // The router, and the products around the experts.
      whole += layer.hidden * (f.experts + 2 * f.latent);
    }
  } else if (layer.kind == LayerKind::kConvolutions) {
    whole = MatrixParameters(layer);
  }
  const int64_t divided = all - vectors - experts - whole;
  return {.dense = CeilDiv(divided, parallel.tp) + whole + vectors,
          .experts = CeilDiv(experts, parallel.expert_gpus())};
}

bool HasAdapters(const LayerSpec& layer) {
  return layer.kind == LayerKind::kTransformer && HasMixer(layer) &&
         layer.attention.query_rank == 0 && layer.attention.kv_rank == 0;
}

ShardedParameters TrainedOnGpu(const LayerSpec& layer,
                               const ParallelLayout& parallel,
                               int64_t adapter_rank) {
  if (adapter_rank == 0) return ParametersOnGpu(layer, parallel);
  if (!HasAdapters(layer)) return {};
  const int64_t widths = layer.hidden +
                         MixerInputs(layer) +  // Into the token mixer,
                         MixerOutputs(layer) + layer.hidden;  // and out of it.
  return {.dense = CeilDiv(adapter_rank * widths, parallel.tp)};
}

int64_t DenseReplicas(const ParallelLayout& parallel) {
  return int64_t{parallel.dp} * parallel.cp;
}

int64_t ExpertReplicas(const ParallelLayout& parallel) {
  return std::max<int64_t>(
      DenseReplicas(parallel) * parallel.tp / parallel.expert_gpus(), 1);
}

int64_t ShardsOf(int64_t replicas, const TrainingSetup& setup) {
  return setup.optimizer_group > 0
             ? std::min<int64_t>(setup.optimizer_group, replicas)
             : replicas;
}

int64_t HeldKvHeads(const AttentionSpec& attention,
                    const ParallelLayout& parallel) {
  if (attention.kind == AttentionKind::kNone) return 0;
  if (attention.kv_rank > 0) return attention.heads;
  return std::max<int64_t>(attention.kv_heads, parallel.tp);
}

std::vector<MatrixShape> MatricesOnGpu(const LayerSpec& layer,
                                       const ParallelLayout& parallel) {
  std::vector<MatrixShape> shapes;
  const int64_t tp = parallel.tp;
  const int64_t h = layer.hidden;
  if (layer.kind == LayerKind::kLinears) {
    for (size_t i = 0; i < layer.linears.size(); ++i) {
      const LinearSpec& l = layer.linears[i];
      shapes.push_back(i % 2 == 0 ? MatrixShape{CeilDiv(l.out, tp), l.in}
                                  : MatrixShape{l.out, CeilDiv(l.in, tp)});
    }
  }
  if (layer.kind != LayerKind::kTransformer) return shapes;
  if (layer.attention.kind != AttentionKind::kNone) {
    AddAttention(layer, tp, &shapes);
  } else if (HasMixer(layer)) {
    shapes.push_back({CeilDiv(MixerInputs(layer), tp), h});
    shapes.push_back({h, CeilDiv(MixerOutputs(layer), tp)});
  }
  const CrossAttentionSpec& c = layer.cross_attention;
  if (c.heads > 0) {
    const int64_t width = CeilDiv(c.heads * c.head_dim, tp);
    shapes.push_back({width, h});
    shapes.push_back({2 * width, c.context_width});
    shapes.push_back({h, width});
  }
  const FfnSpec& f = layer.ffn;
  const auto add_ffn = [&](int64_t width, int64_t inner) {
    shapes.push_back({(f.gated ? 2 : 1) * inner, width});
    shapes.push_back({width, inner});
  };
  if (f.experts > 0) {
    add_ffn(f.row_width(h),
            CeilDiv(f.expert_hidden, parallel.expert_tp == 1 ? 1 : tp));
    if (f.shared_experts > 0) {
      add_ffn(h, CeilDiv(f.shared_experts * f.expert_hidden, tp));
    }
    if (f.latent > 0) {
      shapes.push_back({f.latent, h});
      shapes.push_back({h, f.latent});
    }
  } else if (f.hidden > 0) {
    add_ffn(h, CeilDiv(f.hidden, tp));
  }
  return shapes;
}

void TensorCount::Add(const TensorCount& other) {
  matrices += other.matrices;
  vectors += other.vectors;
  largest = std::max(largest, other.largest);
}

LayerTensors TensorsOnGpu(const LayerSpec& layer,
                          const ParallelLayout& parallel) {
  LayerTensors tensors;
  const ShardedParameters own = ParametersOnGpu(layer, parallel);
  const int64_t vectors = std::min(layer.vector_parameters, own.dense);
  if (vectors > 0 && layer.hidden > 0) {
    tensors.dense.vectors = CeilDiv(vectors, layer.hidden);
  }
  LayerSpec dense = layer;  // Without routed experts.
  if (layer.ffn.experts > 0) {
    dense.ffn.experts = 0;
    dense.ffn.hidden = layer.ffn.shared_experts * layer.ffn.expert_hidden;
    tensors.experts.matrices =
        CeilDiv(layer.ffn.experts, int64_t{parallel.ep}) *
        (layer.ffn.gated ? 3 : 2);
    tensors.experts.largest = CeilDiv(own.experts, tensors.experts.matrices);
  }
  const std::vector<MatrixShape> shapes = MatricesOnGpu(dense, parallel);
  // The last two are those of a feed-forward, the first of which has two halves
  // if it is gated.
  const bool has_halves = layer.kind == LayerKind::kTransformer &&
                          dense.ffn.hidden > 0 && layer.ffn.gated;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t parts = has_halves && i + 2 == shapes.size() ? 2 : 1;
    tensors.dense.Add(
        {.matrices = parts,
         .largest = shapes[i].outputs * shapes[i].inputs / parts});
  }
  if (layer.ffn.experts > 0) ++tensors.dense.matrices;  // The router.
  if (tensors.dense.matrices == 0 && own.dense > vectors) {
    tensors.dense.Add({.matrices = 1, .largest = own.dense - vectors});
  }
  return tensors;
}

int64_t CastParameters(const LayerSpec& layer, const ParallelLayout& parallel) {
  if (layer.kind != LayerKind::kTransformer) return 0;
  const ShardedParameters own = ParametersOnGpu(layer, parallel);
  const ModulationSpec& m = layer.modulation;
  const int64_t others = std::min(layer.vector_parameters, Parameters(layer)) +
                         layer.hidden * layer.ffn.experts +
                         CeilDiv(m.vectors * layer.hidden * m.condition_width +
                                     MixerVectors(layer),
                                 int64_t{parallel.tp});
  return std::max<int64_t>(own.dense + own.experts - others, 0);
}

ParameterBytes BytesOf(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return {};
    case Precision::kFp8:
      return {.weights = 4};
    case Precision::kFp32:
      return {.weights = 4, .optimizer = 8};
  }
  return {};
}

int64_t SummedGradientBytes(const TrainingSetup& setup) {
  if (IsMegatron(setup)) return std::min(setup.gradient_bytes, 4);
  // Without an fp32 weight, gradients have the 16 bits of the weights.
  return HasFp32Weights(setup) ? BytesOf(Precision::kBf16).gradients : 2;
}

bool HasFp32Weights(const TrainingSetup& setup) {
  constexpr int32_t kMoments = 8;  // Two in fp32.
  return setup.optimizer_bytes > kMoments;
}

bool IsMegatron(const TrainingSetup& setup) {
  return setup.framework == Framework::kMegatronCore ||
         setup.framework == Framework::kMegatronBridge;
}

int64_t GradientBytes(Precision precision, const TrainingSetup& setup) {
  return precision == Precision::kFp32 ? BytesOf(precision).gradients
                                       : setup.gradient_bytes;
}

}  // namespace pipeloom::emulator
