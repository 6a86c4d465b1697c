// A model that is being made from another program's configuration, and the
// layers that most architectures are made of.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_DRAFT_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_DRAFT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "formats/model_config/config_node.h"
#include "ir/job/model_spec.h"

namespace pipeloom::formats {

// The model that a reader of an architecture fills in. `processor` is the
// configuration of the image processor (preprocessor_config.json), without
// fields if there is none.
struct Draft {
  ModelSpec model{};
  ConfigNotes& notes;
  ConfigNode processor;

  // Appends a module and returns its id.
  ModuleId Add(ModuleSpec module);
  LayerSpec& LastLayer(ModuleId module);
  void Connect(ModuleId from, ModuleId to, bool as_context = false);
};

// Which parts of a transformer layer have a bias.
struct Biases {
  bool query_key_value = false;
  bool attention_output = false;
  bool ffn = false;
};

// Returns a transformer layer whose vector parameters are the biases and
// `other_vectors`: norms, scales. Its `biases` is set if all products of
// attention and of a dense feed-forward part have one.
LayerSpec TransformerLayer(absl::string_view name, int64_t hidden,
                           const AttentionSpec& attention, const FfnSpec& ffn,
                           const Biases& biases, int64_t other_vectors);
// Returns matrix products one after another; each has a bias if `bias`.
LayerSpec LinearsLayer(absl::string_view name, std::vector<LinearSpec> linears,
                       bool bias, int64_t other_vectors = 0);
LayerSpec EmbeddingLayer(int64_t vocab, int64_t hidden);
// Returns the loss head with the norm before it.
LayerSpec LossHeadLayer(int64_t vocab, int64_t hidden, bool tied,
                        int64_t norm_parameters);
// Returns plain multi-head attention of `heads` that share `hidden`.
AttentionSpec FullAttention(int64_t hidden, int64_t heads);

// Returns the last layer. REQUIRES: there is one.
LayerSpec& LastLayer(ModuleSpec* module);
void AddLayers(int64_t count, const LayerSpec& layer, ModuleSpec* module);

// Returns hidden / heads; 0 if heads is 0. Fails if it is not whole.
int64_t HeadDim(const ConfigNode& config, absl::string_view heads_field,
                int64_t hidden, int64_t heads);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_DRAFT_H_
