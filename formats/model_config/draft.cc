#include "formats/model_config/draft.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace pipeloom::formats {

ModuleId Draft::Add(ModuleSpec module) {
  return model.modules.push_back(std::move(module));
}

LayerSpec& Draft::LastLayer(ModuleId module) {
  return formats::LastLayer(&model.modules[module]);
}

void Draft::Connect(ModuleId from, ModuleId to, bool as_context) {
  model.edges.push_back({from, to, as_context});
}

LayerSpec TransformerLayer(absl::string_view name, int64_t hidden,
                           const AttentionSpec& attention, const FfnSpec& ffn,
                           const Biases& biases, int64_t other_vectors) {
  LayerSpec layer;
  layer.kind = LayerKind::kTransformer;
  layer.name = std::string(name);
  layer.hidden = hidden;
  layer.attention = attention;
  layer.ffn = ffn;
  layer.vector_parameters = other_vectors;
  if (biases.query_key_value) {
    layer.vector_parameters +=
        attention.heads * attention.head_dim +
        attention.kv_heads * (attention.head_dim + attention.value_width());
  }
  if (biases.attention_output) layer.vector_parameters += hidden;
  if (biases.ffn && ffn.experts == 0) {
    layer.vector_parameters += (ffn.gated ? 2 : 1) * ffn.hidden + hidden;
  }
  layer.biases = biases.query_key_value && biases.attention_output &&
                 (biases.ffn || ffn.experts > 0);
  return layer;
}

LayerSpec LinearsLayer(absl::string_view name, std::vector<LinearSpec> linears,
                       bool bias, int64_t other_vectors) {
  LayerSpec layer;
  layer.kind = LayerKind::kLinears;
  layer.name = std::string(name);
  layer.hidden = linears.back().out;
  layer.vector_parameters = other_vectors;
  if (bias) {
    for (const LinearSpec& linear : linears) {
      layer.vector_parameters += linear.out;
    }
  }
  layer.linears = std::move(linears);
  return layer;
}

LayerSpec EmbeddingLayer(int64_t vocab, int64_t hidden) {
  LayerSpec layer;
  layer.kind = LayerKind::kEmbedding;
  layer.name = "text_embedding";
  layer.hidden = hidden;
  layer.vocab = vocab;
  return layer;
}

LayerSpec LossHeadLayer(int64_t vocab, int64_t hidden, bool tied,
                        int64_t norm_parameters) {
  LayerSpec layer;
  layer.kind = LayerKind::kLossHead;
  layer.name = "loss_head";
  layer.hidden = hidden;
  layer.vocab = vocab;
  layer.tied = tied;
  layer.vector_parameters = norm_parameters;
  return layer;
}

AttentionSpec FullAttention(int64_t hidden, int64_t heads) {
  AttentionSpec attention;
  attention.kind = AttentionKind::kFull;
  attention.heads = heads;
  attention.kv_heads = heads;
  attention.head_dim = heads > 0 ? hidden / heads : 0;
  return attention;
}

LayerSpec& LastLayer(ModuleSpec* module) {
  return module->layers[LayerId(module->layers.size() - 1)];
}

void AddLayers(int64_t count, const LayerSpec& layer, ModuleSpec* module) {
  for (int64_t i = 0; i < count; ++i) module->layers.push_back(layer);
}

int64_t HeadDim(const ConfigNode& config, absl::string_view heads_field,
                int64_t hidden, int64_t heads) {
  if (heads <= 0) return 0;
  if (hidden % heads != 0) {
    config.Fail(heads_field,
                absl::StrFormat("is %d; it must divide the width, which is %d",
                                heads, hidden));
  }
  return hidden / heads;
}

}  // namespace pipeloom::formats
