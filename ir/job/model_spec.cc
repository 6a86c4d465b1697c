#include "ir/job/model_spec.h"

#include <algorithm>
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
  if (a.query_rank == 0 && a.kv_rank == 0) {
    return layer.hidden * (a.projected() + a.mixed());
  }
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

int64_t MixerMatrices(const LayerSpec& layer) {
  if (layer.state_space.heads > 0) {
    const StateSpaceSpec& s = layer.state_space;
    return layer.hidden * (s.projected() + s.mixed());
  }
  if (layer.delta_net.value_heads > 0) {
    const DeltaNetSpec& d = layer.delta_net;
    return layer.hidden * (d.projected() + d.mixed());
  }
  return AttentionMatrices(layer);
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

int64_t FfnMatrix(const LayerSpec& layer, int64_t width, int64_t ffn_hidden) {
  return (layer.ffn.gated ? 3 : 2) * width * ffn_hidden;
}

int64_t LinearMatrices(const LayerSpec& layer) {
  int64_t sum = 0;
  for (const LinearSpec& linear : layer.linears) sum += linear.in * linear.out;
  return sum;
}

int64_t RoutedParameters(const LayerSpec& layer, int64_t experts) {
  const FfnSpec& f = layer.ffn;
  if (f.experts == 0) return FfnMatrix(layer, layer.hidden, f.hidden);
  return experts *
             FfnMatrix(layer, f.row_width(layer.hidden), f.expert_hidden) +
         f.shared_experts * FfnMatrix(layer, layer.hidden, f.expert_hidden) +
         layer.hidden * (f.experts + 2 * f.latent);  // The router.
}

// Adapters are at the projections of token mixers, which must be there.
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
    if (layer.kind != LayerKind::kTransformer || !HasMixer(layer)) continue;
    if (a.query_rank == 0 && a.kv_rank == 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "module \"%s\": adapter_rank is %d, but no layer has a token mixer "
      "without low ranks; it must be 0",
      module.name, module.adapter_rank));
}

// Returns what is wrong with the token mixer of a layer, or "".
std::string MixerFault(const LayerSpec& layer) {
  const StateSpaceSpec& s = layer.state_space;
  const DeltaNetSpec& d = layer.delta_net;
  const AttentionSpec& a = layer.attention;
  const bool has_states = s != StateSpaceSpec{};
  const bool has_deltas = d != DeltaNetSpec{};
  if ((has_states || has_deltas) && layer.kind != LayerKind::kTransformer) {
    return absl::StrFormat(
        "%s is given; only a LAYER_KIND_TRANSFORMER may have it",
        has_states ? "state_space" : "delta_net");
  }
  if (int{a.kind != AttentionKind::kNone} + int{has_states} + int{has_deltas} >
      1) {
    return "attention, state_space and delta_net: a layer must have at most "
           "one of them";
  }
  if (a.kind == AttentionKind::kNone && a.heads + a.kv_heads > 0) {
    return absl::StrFormat(
        "attention.kind is ATTENTION_KIND_NONE or not given, and attention has "
        "%d heads; the kind must be ATTENTION_KIND_CAUSAL, ATTENTION_KIND_FULL "
        "or ATTENTION_KIND_WINDOW, or attention be left out",
        std::max(a.heads, a.kv_heads));
  }
  if (has_states) {
    if (s.heads == 0 || s.head_dim == 0 || s.state_dim == 0) {
      return "state_space needs heads, head_dim and state_dim > 0";
    }
    if (s.groups < 1 || s.heads % s.groups != 0) {
      return absl::StrFormat(
          "state_space.groups is %d; it must divide heads, which is %d",
          s.groups, s.heads);
    }
    if (s.kernel < 1 || s.chunk < 1) {
      return "state_space.kernel and chunk must be > 0";
    }
  }
  if (has_deltas) {
    if (d.key_heads == 0 || d.value_heads == 0 || d.key_dim == 0 ||
        d.value_dim == 0) {
      return "delta_net needs key_heads, value_heads, key_dim and value_dim > "
             "0";
    }
    if (d.value_heads % d.key_heads != 0) {
      return absl::StrFormat(
          "delta_net.key_heads is %d; it must divide value_heads, which is %d",
          d.key_heads, d.value_heads);
    }
    if (d.kernel < 1 || d.chunk < 1) {
      return "delta_net.kernel and chunk must be > 0";
    }
  }
  if (a.output_gate &&
      (a.kind == AttentionKind::kNone || a.query_rank > 0 || a.kv_rank > 0)) {
    return "attention.output_gate is true; it must be false without attention "
           "and with query_rank or kv_rank";
  }
  return "";
}

// Returns what is wrong with the feed-forward part of a layer, or "".
std::string FfnFault(const FfnSpec& f) {
  if (f.experts > 0) {
    if (f.expert_hidden == 0 || f.experts_per_token == 0 ||
        f.experts_per_token > f.experts) {
      return "experts need expert_hidden > 0 and experts_per_token in [1, "
             "experts]";
    }
    if (f.hidden > 0) {
      return absl::StrFormat(
          "ffn.hidden is %d and ffn.experts is %d; a layer has a dense part or "
          "experts, so one must be 0: shared_experts count the experts that "
          "every token passes through",
          f.hidden, f.experts);
    }
    return "";
  }
  const struct {
    const char* field;
    int64_t value;
  } of_experts[] = {{"experts_per_token", f.experts_per_token},
                    {"shared_experts", f.shared_experts},
                    {"expert_hidden", f.expert_hidden},
                    {"latent", f.latent}};
  for (const auto& given : of_experts) {
    if (given.value == 0) continue;
    return absl::StrFormat(
        "ffn.%s is %d; it must be 0 unless there are experts (ffn.experts > 0)",
        given.field, given.value);
  }
  return "";
}

// The faults of parts of a layer, as the end of an error; empty if there is
// none.
std::string DimensionFault(const LayerSpec& layer) {
  const struct {
    const char* field;
    int64_t value;
  } dimensions[] = {
      {"hidden", layer.hidden},
      {"vocab", layer.vocab},
      {"vector_parameters", layer.vector_parameters},
      {"attention.heads", layer.attention.heads},
      {"attention.kv_heads", layer.attention.kv_heads},
      {"attention.head_dim", layer.attention.head_dim},
      {"attention.window", layer.attention.window},
      {"attention.query_rank", layer.attention.query_rank},
      {"attention.kv_rank", layer.attention.kv_rank},
      {"attention.rope_dim", layer.attention.rope_dim},
      {"attention.value_dim", layer.attention.value_dim},
      {"modulation.vectors", layer.modulation.vectors},
      {"modulation.condition_width", layer.modulation.condition_width},
      {"cross_attention.heads", layer.cross_attention.heads},
      {"cross_attention.head_dim", layer.cross_attention.head_dim},
      {"cross_attention.context_width", layer.cross_attention.context_width},
      {"cross_attention.context_tokens", layer.cross_attention.context_tokens},
      {"ffn.hidden", layer.ffn.hidden},
      {"ffn.experts", layer.ffn.experts},
      {"ffn.experts_per_token", layer.ffn.experts_per_token},
      {"ffn.shared_experts", layer.ffn.shared_experts},
      {"ffn.expert_hidden", layer.ffn.expert_hidden},
      {"ffn.latent", layer.ffn.latent},
      {"state_space.heads", layer.state_space.heads},
      {"state_space.head_dim", layer.state_space.head_dim},
      {"state_space.state_dim", layer.state_space.state_dim},
      {"delta_net.key_heads", layer.delta_net.key_heads},
      {"delta_net.value_heads", layer.delta_net.value_heads},
      {"delta_net.key_dim", layer.delta_net.key_dim},
      {"delta_net.value_dim", layer.delta_net.value_dim},
  };
  for (const auto& [field, value] : dimensions) {
    if (value < 0) {
      return absl::StrFormat("%s is %d; it must be >= 0", field, value);
    }
  }
  const struct {
    const char* field;
    double value;
  } fixed[] = {
      {"fixed_flops_per_token", layer.fixed_flops_per_token},
      {"fixed_flops_per_instance", layer.fixed_flops_per_instance},
      {"fixed_activation_bytes_per_token",
       layer.fixed_activation_bytes_per_token},
      {"fixed_activation_bytes_per_instance",
       layer.fixed_activation_bytes_per_instance},
  };
  for (const auto& [field, value] : fixed) {
    if (!(value >= 0)) {
      return absl::StrFormat("%s is %g; it must be >= 0", field, value);
    }
  }
  return "";
}

std::string AttentionFault(const AttentionSpec& a) {
  if (a.kind != AttentionKind::kNone &&
      (a.heads == 0 || a.kv_heads == 0 || a.head_dim == 0)) {
    return "attention needs heads, kv_heads and head_dim > 0";
  }
  if (a.kind == AttentionKind::kWindow && a.window == 0) {
    return "window attention needs window > 0";
  }
  if (a.kind != AttentionKind::kWindow && a.kind != AttentionKind::kCausal &&
      a.window > 0) {
    return absl::StrFormat(
        "attention.window is %d; it must be 0 unless the kind is "
        "ATTENTION_KIND_WINDOW or ATTENTION_KIND_CAUSAL",
        a.window);
  }
  if (a.kind != AttentionKind::kNone && a.heads % a.kv_heads != 0) {
    return absl::StrFormat("kv_heads is %d; it must divide heads, which is %d",
                           a.kv_heads, a.heads);
  }
  if (!(a.density > 0 && a.density <= 1)) {
    return absl::StrFormat("attention.density is %g; it must be in (0, 1]",
                           a.density);
  }
  if (a.kv_rank == 0 ? a.rope_dim > 0 : a.rope_dim > a.head_dim) {
    return absl::StrFormat(
        "attention.rope_dim is %d; it must be at most head_dim, which is "
        "%d, and needs kv_rank > 0",
        a.rope_dim, a.head_dim);
  }
  return "";
}

// Its kind says which parts a layer must have.
std::string KindFault(const LayerSpec& layer) {
  switch (layer.kind) {
    case LayerKind::kTransformer:
      return AttentionFault(layer.attention);
    case LayerKind::kEmbedding:
    case LayerKind::kLossHead:
      if (layer.vocab == 0) return "vocab is 0; it must be > 0";
      break;
    case LayerKind::kLinears:
      if (layer.linears.empty()) return "linears is empty";
      for (const LinearSpec& linear : layer.linears) {
        if (linear.in <= 0 || linear.out <= 0) {
          return "each of linears needs in > 0 and out > 0";
        }
      }
      break;
    case LayerKind::kFixedWork:
      break;
    case LayerKind::kConvolutions:
      if (layer.convolutions.empty()) return "convolutions is empty";
      for (const ConvolutionSpec& c : layer.convolutions) {
        if (c.in <= 0 || c.out <= 0 || c.kernel <= 0 || c.depth <= 0 ||
            !(c.scale > 0)) {
          return "each of convolutions needs in, out, kernel, depth and scale "
                 "> 0";
        }
      }
      break;
  }
  return "";
}

std::string LayerFault(const LayerSpec& layer) {
  if (const std::string fault = DimensionFault(layer); !fault.empty()) {
    return fault;
  }
  if (!(layer.downsample >= 1)) {
    return absl::StrFormat("downsample is %g; it must be >= 1",
                           layer.downsample);
  }
  if (layer.kind != LayerKind::kFixedWork && layer.hidden == 0) {
    return "hidden is 0; it must be > 0";
  }
  if (layer.biases && layer.kind != LayerKind::kTransformer) {
    return "biases is true; it must be false unless the kind is "
           "LAYER_KIND_TRANSFORMER";
  }
  if (layer.dropout && layer.kind != LayerKind::kTransformer &&
      layer.kind != LayerKind::kEmbedding) {
    return "dropout is true; it must be false unless the kind is "
           "LAYER_KIND_TRANSFORMER or LAYER_KIND_EMBEDDING";
  }
  if (const std::string fault = MixerFault(layer); !fault.empty()) {
    return fault;
  }
  if (const std::string fault = FfnFault(layer.ffn); !fault.empty()) {
    return fault;
  }
  return KindFault(layer);
}

absl::Status ValidateLayer(const ModuleSpec& module, LayerId id) {
  const LayerSpec& layer = module.layers[id];
  const std::string fault = LayerFault(layer);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("module \"%s\": layer %d (%s): %s", module.name,
                      id.value(), layer.name, fault));
}

}  // namespace

bool HasMixer(const LayerSpec& layer) {
  return layer.attention.kind != AttentionKind::kNone ||
         layer.state_space.heads > 0 || layer.delta_net.value_heads > 0;
}

int BlocksOf(const LayerSpec& layer) {
  return int{HasMixer(layer)} + int{layer.cross_attention.heads > 0} +
         int{layer.ffn.hidden > 0 || layer.ffn.experts > 0};
}

int64_t MixerInputs(const LayerSpec& layer) {
  if (layer.state_space.heads > 0) return layer.state_space.projected();
  if (layer.delta_net.value_heads > 0) return layer.delta_net.projected();
  return layer.attention.kind == AttentionKind::kNone
             ? 0
             : layer.attention.projected();
}

int64_t MixerOutputs(const LayerSpec& layer) {
  if (layer.state_space.heads > 0) return layer.state_space.mixed();
  if (layer.delta_net.value_heads > 0) return layer.delta_net.mixed();
  return layer.attention.kind == AttentionKind::kNone ? 0
                                                      : layer.attention.mixed();
}

int64_t MixerVectors(const LayerSpec& layer) {
  if (layer.kind != LayerKind::kTransformer) return 0;
  if (layer.state_space.heads > 0) return layer.state_space.vectors();
  return layer.delta_net.value_heads > 0 ? layer.delta_net.vectors() : 0;
}

int64_t MatrixParameters(const LayerSpec& layer) {
  switch (layer.kind) {
    case LayerKind::kTransformer:
      return MixerMatrices(layer) + CrossAttentionMatrices(layer) +
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
  return MixerMatrices(layer) + CrossAttentionMatrices(layer) +
         RoutedParameters(layer, layer.ffn.experts_per_token);
}

int64_t Parameters(const LayerSpec& layer) {
  int64_t matrices = MatrixParameters(layer);
  if (layer.kind == LayerKind::kEmbedding)
    matrices = layer.hidden * layer.vocab;
  if (layer.tied) matrices = 0;
  return matrices + MixerVectors(layer) + layer.vector_parameters;
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

bool HasExperts(const ModuleSpec& module) {
  return std::any_of(
      module.layers.begin(), module.layers.end(), [](const LayerSpec& layer) {
        return layer.kind == LayerKind::kTransformer && layer.ffn.experts > 0;
      });
}

bool HasExperts(const ModelSpec& model) {
  return std::any_of(
      model.modules.begin(), model.modules.end(),
      [](const ModuleSpec& module) { return HasExperts(module); });
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
