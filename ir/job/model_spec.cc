#include "ir/job/model_spec.h"

#include <set>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

int64_t AttentionMatrices(const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  if (a.kind == AttentionKind::kNone) return 0;
  const int64_t query_width = a.heads * a.head_dim;
  const int64_t value_width = a.value_width();
  const int64_t query = a.query_rank > 0 ? layer.hidden * a.query_rank +
                                               a.query_rank * query_width
                                         : layer.hidden * query_width;
  const int64_t key_value =
      a.kv_rank > 0
          ? layer.hidden * (a.kv_rank + a.rope_dim) +
                a.kv_rank * a.heads * (a.head_dim - a.rope_dim + value_width)
          : layer.hidden * a.kv_heads * (a.head_dim + value_width);
  return query + key_value + a.heads * value_width * layer.hidden;
}

int64_t CrossAttentionMatrices(const LayerSpec& layer) {
  const CrossAttentionSpec& c = layer.cross_attention;
  if (c.heads == 0) return 0;
  const int64_t width = c.heads * c.head_dim;
  return 2 * layer.hidden * width + 2 * c.context_width * width;
}

int64_t ModulationMatrix(const LayerSpec& layer) {
  const ModulationSpec& m = layer.modulation;
  return m.vectors * layer.hidden * m.condition_width;
}

int64_t ConvolutionWeights(const LayerSpec& layer) {
  int64_t sum = 0;
  for (const ConvolutionSpec& c : layer.convolutions) sum += c.weights();
  return sum;
}

int64_t FfnMatrix(const LayerSpec& layer, int64_t ffn_hidden) {
  return (layer.ffn.gated ? 3 : 2) * layer.hidden * ffn_hidden;
}

int64_t LinearMatrices(const LayerSpec& layer) {
  int64_t sum = 0;
  for (const LinearSpec& linear : layer.linears) sum += linear.in * linear.out;
  return sum;
}

int64_t RoutedParameters(const LayerSpec& layer, int64_t experts) {
  const FfnSpec& f = layer.ffn;
  if (f.experts == 0) return FfnMatrix(layer, f.hidden);
  return (experts + f.shared_experts) * FfnMatrix(layer, f.expert_hidden) +
         layer.hidden * f.experts;  // The router.
}

// Adapters are at the projections of self-attention, which must be there.
absl::Status ValidateAdapters(const ModuleSpec& module) {
  if (module.adapter_rank == 0) return absl::OkStatus();
  if (module.adapter_rank < 0 || module.adapter_rank > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrFormat("module \"%s\": adapter_rank is %d; it must be in [0, "
                        "1048576]",
                        module.name, module.adapter_rank));
  }
  for (const LayerSpec& layer : module.layers) {
    const AttentionSpec& a = layer.attention;
    if (layer.kind != LayerKind::kTransformer ||
        a.kind == AttentionKind::kNone) {
      continue;
    }
    if (a.query_rank == 0 && a.kv_rank == 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "module \"%s\": adapter_rank is %d, but no layer has self-attention "
      "without low ranks; it must be 0",
      module.name, module.adapter_rank));
}

absl::Status ValidateLayer(const ModuleSpec& module, LayerId id) {
  const LayerSpec& layer = module.layers[id];
  const auto fail = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("module \"%s\": layer %d (%s): %s", module.name,
                        id.value(), layer.name, what));
  };
  const int64_t non_negative[] = {layer.hidden,
                                  layer.vocab,
                                  layer.vector_parameters,
                                  layer.attention.heads,
                                  layer.attention.kv_heads,
                                  layer.attention.head_dim,
                                  layer.attention.window,
                                  layer.attention.query_rank,
                                  layer.attention.kv_rank,
                                  layer.attention.rope_dim,
                                  layer.attention.value_dim,
                                  layer.modulation.vectors,
                                  layer.modulation.condition_width,
                                  layer.cross_attention.heads,
                                  layer.cross_attention.head_dim,
                                  layer.cross_attention.context_width,
                                  layer.cross_attention.context_tokens,
                                  layer.ffn.hidden,
                                  layer.ffn.experts,
                                  layer.ffn.experts_per_token,
                                  layer.ffn.shared_experts,
                                  layer.ffn.expert_hidden};
  for (const int64_t value : non_negative) {
    if (value < 0) {
      return fail(absl::StrFormat("a dimension is %d; it must be >= 0", value));
    }
  }
  if (layer.fixed_flops_per_token < 0 || layer.fixed_flops_per_instance < 0 ||
      layer.fixed_activation_bytes_per_token < 0 ||
      layer.fixed_activation_bytes_per_instance < 0) {
    return fail("a fixed_* value is negative; it must be >= 0");
  }
  if (!(layer.downsample >= 1)) {
    return fail(
        absl::StrFormat("downsample is %g; it must be >= 1", layer.downsample));
  }
  if (layer.kind != LayerKind::kFixedWork && layer.hidden == 0) {
    return fail("hidden is 0; it must be > 0");
  }
  if (layer.biases && layer.kind != LayerKind::kTransformer) {
    return fail(
        "biases is true; it must be false unless the kind is "
        "LAYER_KIND_TRANSFORMER");
  }
  if (layer.dropout && layer.kind != LayerKind::kTransformer &&
      layer.kind != LayerKind::kEmbedding) {
    return fail(
        "dropout is true; it must be false unless the kind is "
        "LAYER_KIND_TRANSFORMER or LAYER_KIND_EMBEDDING");
  }
  switch (layer.kind) {
    case LayerKind::kTransformer: {
      const AttentionSpec& a = layer.attention;
      if (a.kind != AttentionKind::kNone &&
          (a.heads == 0 || a.kv_heads == 0 || a.head_dim == 0)) {
        return fail("attention needs heads, kv_heads and head_dim > 0");
      }
      if (a.kind == AttentionKind::kWindow && a.window == 0) {
        return fail("window attention needs window > 0");
      }
      if (a.kind != AttentionKind::kWindow &&
          a.kind != AttentionKind::kCausal && a.window > 0) {
        return fail(absl::StrFormat(
            "attention.window is %d; it must be 0 unless the kind is "
            "ATTENTION_KIND_WINDOW or ATTENTION_KIND_CAUSAL",
            a.window));
      }
      if (a.kind != AttentionKind::kNone && a.heads % a.kv_heads != 0) {
        return fail(
            absl::StrFormat("kv_heads is %d; it must divide heads, which is %d",
                            a.kv_heads, a.heads));
      }
      if (!(a.density > 0 && a.density <= 1)) {
        return fail(absl::StrFormat(
            "attention.density is %g; it must be in (0, 1]", a.density));
      }
      if (a.kv_rank == 0 ? a.rope_dim > 0 : a.rope_dim > a.head_dim) {
        return fail(absl::StrFormat(
            "attention.rope_dim is %d; it must be at most head_dim, which is "
            "%d, and needs kv_rank > 0",
            a.rope_dim, a.head_dim));
      }
      if (layer.ffn.experts > 0 &&
          (layer.ffn.expert_hidden == 0 || layer.ffn.experts_per_token == 0 ||
           layer.ffn.experts_per_token > layer.ffn.experts)) {
        return fail(
            "experts need expert_hidden > 0 and experts_per_token in "
            "[1, experts]");
      }
      break;
    }
    case LayerKind::kEmbedding:
    case LayerKind::kLossHead:
      if (layer.vocab == 0) return fail("vocab is 0; it must be > 0");
      break;
    case LayerKind::kLinears:
      if (layer.linears.empty()) return fail("linears is empty");
      for (const LinearSpec& linear : layer.linears) {
        if (linear.in <= 0 || linear.out <= 0) {
          return fail("each of linears needs in > 0 and out > 0");
        }
      }
      break;
    case LayerKind::kFixedWork:
      break;
    case LayerKind::kConvolutions:
      if (layer.convolutions.empty()) return fail("convolutions is empty");
      for (const ConvolutionSpec& c : layer.convolutions) {
        if (c.in <= 0 || c.out <= 0 || c.kernel <= 0 || c.depth <= 0 ||
            !(c.scale > 0)) {
          return fail(
              "each of convolutions needs in, out, kernel, depth and scale > "
              "0");
        }
      }
      break;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t MatrixParameters(const LayerSpec& layer) {
  switch (layer.kind) {
    case LayerKind::kTransformer:
      return AttentionMatrices(layer) + CrossAttentionMatrices(layer) +
             RoutedParameters(layer, layer.ffn.experts) +
             ModulationMatrix(layer);
    case LayerKind::kLossHead:
      return layer.hidden * layer.vocab;
    case LayerKind::kLinears:
      return LinearMatrices(layer);
    case LayerKind::kConvolutions:
      return ConvolutionWeights(layer);
    case LayerKind::kEmbedding:
    case LayerKind::kFixedWork:
      return 0;
  }
  return 0;
}

int64_t ActiveMatrixParameters(const LayerSpec& layer) {
  if (layer.kind != LayerKind::kTransformer) return MatrixParameters(layer);
  return AttentionMatrices(layer) + CrossAttentionMatrices(layer) +
         RoutedParameters(layer, layer.ffn.experts_per_token);
}

int64_t Parameters(const LayerSpec& layer) {
  int64_t matrices = MatrixParameters(layer);
  if (layer.kind == LayerKind::kEmbedding)
    matrices = layer.hidden * layer.vocab;
  if (layer.tied) matrices = 0;
  return matrices + layer.vector_parameters;
}

int64_t Parameters(const ModuleSpec& module) {
  int64_t sum = 0;
  for (const LayerSpec& layer : module.layers) sum += Parameters(layer);
  return sum;
}

int64_t Parameters(const ModelSpec& model) {
  int64_t sum = 0;
  for (const ModuleSpec& module : model.modules) sum += Parameters(module);
  return sum;
}

absl::Status ValidateModelSpec(const ModelSpec& model) {
  if (model.modules.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model \"%s\": modules is empty; it needs at least one", model.name));
  }
  std::set<std::string> names;
  for (const ModuleSpec& module : model.modules) {
    if (module.name.empty() || !names.insert(module.name).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model \"%s\": module name \"%s\" is empty or used twice", model.name,
          module.name));
    }
    if (module.layers.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("module \"%s\": layers is empty; it needs at least "
                          "one",
                          module.name));
    }
    PIPELOOM_RETURN_IF_ERROR(ValidateAdapters(module));
    for (const LayerId layer : module.layers.ids()) {
      PIPELOOM_RETURN_IF_ERROR(ValidateLayer(module, layer));
    }
  }
  std::set<std::pair<ModuleId, ModuleId>> seen;
  for (const ModuleEdge& edge : model.edges) {
    if (!model.modules.Contains(edge.from) ||
        !model.modules.Contains(edge.to)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model \"%s\": an edge goes from module %d to module %d; there are "
          "%d modules",
          model.name, edge.from.value(), edge.to.value(),
          model.modules.size()));
    }
    if (!(edge.from < edge.to)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model \"%s\": module \"%s\" feeds \"%s\", which stands before it "
          "or feeds it too; modules must not feed each other in a circle",
          model.name, model.modules[edge.from].name,
          model.modules[edge.to].name));
    }
    if (!seen.insert({edge.from, edge.to}).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model \"%s\": the edge from \"%s\" to \"%s\" is given twice",
          model.name, model.modules[edge.from].name,
          model.modules[edge.to].name));
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
