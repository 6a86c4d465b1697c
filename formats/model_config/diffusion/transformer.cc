#include "formats/model_config/diffusion/transformer.h"

#include "absl/strings/str_format.h"

namespace pipeloom::formats {

DiffusionShape ReadDiffusionShape(const ConfigNode& config, int64_t heads,
                                  int64_t head_dim) {
  DiffusionShape shape;
  shape.heads = config.Int("num_attention_heads", {1, 1024}, heads);
  shape.head_dim = config.Int("attention_head_dim", {1, 1024}, head_dim);
  shape.width = shape.heads * shape.head_dim;
  return shape;
}

int64_t Affine(int64_t in, int64_t out) { return in * out + out; }

int64_t TwoAffine(int64_t in, int64_t out) {
  return Affine(in, out) + Affine(out, out);
}

int64_t TimestepEmbedding(int64_t width) { return TwoAffine(256, width); }

ModuleSpec BeginGenerator(const ConfigNode& config, int64_t values,
                          int64_t width, int64_t embedders) {
  config.notes().Assume(
      "the embeddings of time and text have parameters, but no work; the text "
      "encoder and the VAE are left out");
  ModuleSpec module;
  module.name = "generator";
  module.role = ModuleRole::kGenerator;
  module.layers.push_back(LinearsLayer("latent_embedding", {{values, width}},
                                       /*bias=*/true, embedders));
  return module;
}

void FinishGenerator(int64_t width, int64_t values, int64_t others,
                     ModuleSpec* module) {
  module->layers.push_back(
      LinearsLayer("latent_head", {{width, values}}, /*bias=*/true, others));
}

LayerSpec MakeJointLayer(const DiffusionShape& shape, const JointLayer& layer) {
  const int64_t width = shape.width;
  const int64_t ffn = 2 * width * layer.ffn + layer.ffn + width;
  const int64_t norms = layer.query_key_norms ? 2 * shape.head_dim : 0;
  // The text stream: queries, keys and values, output, feed-forward, norms.
  int64_t text = 3 * Affine(width, width) + norms;
  if (!layer.last) text += Affine(width, width) + ffn;
  const int64_t vectors = layer.vectors + (layer.last ? 2 : 6);
  LayerSpec result =
      TransformerLayer("double_block", width, FullAttention(width, shape.heads),
                       {.hidden = layer.ffn}, {true, true, true},
                       norms + vectors * width + text);
  result.attention.query_key_norms = layer.query_key_norms;
  result.modulation = {.vectors = vectors, .condition_width = width};
  return result;
}

LayerSpec MakeSingleLayer(const DiffusionShape& shape, int64_t ffn) {
  const int64_t width = shape.width;
  // One product has both outputs, with one bias instead of two.
  const int64_t vectors = 2 * shape.head_dim + 3 * width;
  LayerSpec result =
      TransformerLayer("single_block", width, FullAttention(width, shape.heads),
                       {.hidden = ffn}, {true, true, true}, vectors - width);
  result.attention.query_key_norms = true;
  result.modulation = {.vectors = 3, .condition_width = width};
  return result;
}

void NoteJointText(const ConfigNode& config) {
  config.notes().Assume(
      "text tokens that share the attention are not counted: their weights "
      "have parameters, but no work");
}

TokenRule LatentImages(const ConfigNode& config, int64_t pixels,
                       int64_t patch) {
  config.notes().Assume(
      absl::StrFormat("the VAE makes a latent of %d x %d px", pixels, pixels));
  TokenRule rule;
  rule.kind = TokenRuleKind::kLatent;
  rule.modality = Modality::kImage;
  rule.spatial_stride = pixels * patch;
  return rule;
}

TokenRule LatentVideos(const ConfigNode& config, int64_t pixels, int64_t patch,
                       int64_t frames) {
  TokenRule rule = LatentImages(config, pixels, patch);
  config.notes().Assume(absl::StrFormat(
      "the VAE makes a latent of %d frames; videos are not resampled", frames));
  rule.modality = Modality::kVideo;
  rule.frame_group = frames;
  return rule;
}

}  // namespace pipeloom::formats
