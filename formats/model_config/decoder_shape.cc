#include "formats/model_config/decoder_shape.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

int64_t IntOr(const ConfigNode& config, absl::string_view name,
              ConfigRange range, int64_t otherwise) {
  return otherwise > 0 ? config.Int(name, range, otherwise)
                       : config.Int(name, range);
}

}  // namespace

DecoderShape ReadDecoderShape(const ConfigNode& config,
                              const DecoderDefaults& defaults) {
  DecoderShape shape;
  shape.hidden = IntOr(config, "hidden_size", kWidth, defaults.hidden);
  shape.layers = IntOr(config, "num_hidden_layers", kLayers, defaults.layers);
  shape.vocab = IntOr(config, "vocab_size", kVocab, defaults.vocab);
  AttentionSpec& a = shape.attention;
  a.kind = AttentionKind::kCausal;
  a.heads = IntOr(config, "num_attention_heads", kHeads, defaults.heads);
  a.kv_heads =
      config.IsNull("num_key_value_heads") || a.heads == 0
          ? a.heads
          : config.Int("num_key_value_heads", kHeads,
                       defaults.kv_heads > 0 ? defaults.kv_heads : a.heads);
  if (const auto head_dim = config.Optional("head_dim", kHeads)) {
    a.head_dim = *head_dim;
  } else if (defaults.head_dim > 0 && !config.IsNull("head_dim")) {
    a.head_dim = config.Int("head_dim", kHeads, defaults.head_dim);
  } else {
    a.head_dim = HeadDim(config, "num_attention_heads", shape.hidden, a.heads);
  }
  if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) {
    config.Fail("num_key_value_heads",
                absl::StrFormat("is %d; it must divide num_attention_heads, "
                                "which is %d",
                                a.kv_heads, a.heads));
  }
  a.scaled_rotary = HasScaledRotary(config, false);
  shape.tied = config.Flag("tie_word_embeddings", defaults.tied);
  return shape;
}

bool HasScaledRotary(const ConfigNode& config, bool otherwise) {
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const ConfigNode rotary = config.Child(name);
    for (const char* type : {"rope_type", "type"}) {
      if (!rotary.Has(type)) continue;
      return rotary.Text(type) == "yarn" && !rotary.Has("mscale_all_dim");
    }
  }
  return otherwise;
}

ModuleSpec BeginDecoder(const DecoderShape& shape) {
  ModuleSpec module;
  module.name = "backbone";
  module.role = ModuleRole::kBackbone;
  module.layers.push_back(EmbeddingLayer(shape.vocab, shape.hidden));
  return module;
}

void FinishDecoder(const DecoderShape& shape, int64_t norm_parameters,
                   ModuleSpec* module) {
  module->layers.push_back(
      LossHeadLayer(shape.vocab, shape.hidden, shape.tied, norm_parameters));
}

void CheckLayerTypes(const ConfigNode& config, absl::string_view other) {
  for (const std::string& type : config.Texts("layer_types")) {
    if (type == "full_attention" || type == other) continue;
    config.Fail("layer_types",
                absl::StrFormat("has \"%s\"; its items must be full_attention "
                                "or %s",
                                type, other));
  }
}

void SetWindows(const ConfigNode& config, int64_t window,
                absl::FunctionRef<bool(int64_t)> by_default,
                ModuleSpec* module) {
  if (window == 0) return;
  int64_t layers = 0;
  for (const LayerSpec& layer : module->layers) {
    layers += layer.kind == LayerKind::kTransformer ? 1 : 0;
  }
  const std::vector<std::string> types = config.Texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != layers) {
    config.Fail("layer_types",
                absl::StrFormat("has %d items; it must have one for each of "
                                "the %d layers",
                                types.size(), layers));
    return;
  }
  int64_t index = 0;
  for (LayerSpec& layer : module->layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    if (types.empty() ? by_default(index) : types[index] == kSlidingAttention) {
      layer.attention.window = window;
      layer.name = absl::StrCat("window_", layer.name);
    }
    ++index;
  }
}

}  // namespace pipeloom::formats
