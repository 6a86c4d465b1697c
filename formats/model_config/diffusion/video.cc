// Video transformers with cross-attention or one joint stream: Wan, LTX,
// CogVideoX.
#include <algorithm>
#include <vector>

#include "formats/model_config/architectures.h"
#include "formats/model_config/diffusion/transformer.h"

namespace pipeloom::formats {
namespace {

constexpr ConfigRange kChannels{1, 4096};
constexpr ConfigRange kPatch{1, 64};

int64_t Product(const std::vector<int64_t>& sides) {
  int64_t product = 1;
  for (const int64_t side : sides)
    product = std::min<int64_t>(product * side, 1 << 20);
  return product;
}

CrossAttentionSpec TextContext(const DiffusionShape& shape, int64_t tokens) {
  return {.heads = shape.heads,
          .head_dim = shape.head_dim,
          .context_width = shape.width,
          .context_tokens = tokens};
}

}  // namespace

void ReadWan(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 40, 128);
  const int64_t width = shape.width;
  std::vector<int64_t> patch = config.Ints("patch_size", kPatch);
  if (patch.size() != 3) {
    if (config.Has("patch_size")) {
      config.Fail("patch_size", "must have three numbers");
    } else {
      config.notes().Assume("patch_size = 1, 2, 2");
    }
    patch = {1, 2, 2};
  }
  const int64_t in = config.Int("in_channels", kChannels, 16);
  const int64_t out = config.Int("out_channels", kChannels, 16);
  int64_t embedders = TwoAffine(config.Int("freq_dim", kWidth, 256), width) +
                      Affine(width, 6 * width) +
                      TwoAffine(config.Int("text_dim", kWidth, 4096), width);
  if (const auto image = config.Optional("image_dim", kWidth)) {
    embedders +=
        2 * *image + Affine(*image, *image) + Affine(*image, width) + 2 * width;
    if (const auto positions = config.Optional("pos_embed_seq_len", kVocab)) {
      embedders += *positions * *image;
    }
  }
  ModuleSpec module =
      BeginGenerator(config, in * Product(patch), width, embedders);
  // Norms of queries and keys of both attentions, their biases, the table of
  // the modulation, the norm before the cross-attention.
  int64_t vectors = 4 * width + 4 * width + 6 * width;
  if (config.Flag("cross_attn_norm", true)) vectors += 2 * width;
  if (const auto added = config.Optional("added_kv_proj_dim", kWidth)) {
    vectors += 2 * Affine(*added, width) + width;
    config.notes().Assume(
        "the attention to the first image's tokens has parameters, but no "
        "work");
  }
  LayerSpec block =
      TransformerLayer("block", width, FullAttention(width, shape.heads),
                       {.hidden = config.Int("ffn_dim", kWidth, 13824)},
                       {true, true, true}, vectors);
  block.cross_attention = TextContext(shape, 512);
  block.modulation = {.vectors = 6};
  AddLayers(config.Int("num_layers", kLayers, 40), block, &module);
  FinishGenerator(width, out * Product(patch), 2 * width, &module);
  module.token_rules = {LatentVideos(config, in == 48 ? 16 : 8, patch[1], 4)};
  config.notes().Assume("texts are padded to 512 tokens");
  draft->Add(std::move(module));
}

void ReadLtx(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 32, 64);
  const int64_t width = shape.width;
  const int64_t in = config.Int("in_channels", kChannels, 128);
  const int64_t out = config.Int("out_channels", kChannels, 128);
  const int64_t patch = config.Int("patch_size", kPatch, 1);
  const int64_t embedders =
      TimestepEmbedding(width) + Affine(width, 6 * width) +
      TwoAffine(config.Int("caption_channels", kWidth, 4096), width);
  ModuleSpec module = BeginGenerator(config, in, width, embedders);
  const bool bias = config.Flag("attention_bias", true);
  const bool out_bias = config.Flag("attention_out_bias", true);
  // Norms of queries and keys, the table, biases of the cross-attention.
  int64_t vectors =
      4 * width + 6 * width + (bias ? 3 * width : 0) + (out_bias ? width : 0);
  if (config.Flag("norm_elementwise_affine", false)) vectors += 2 * width;
  LayerSpec block =
      TransformerLayer("block", width, FullAttention(width, shape.heads),
                       {.hidden = 4 * width}, {bias, out_bias, true}, vectors);
  block.cross_attention = TextContext(shape, 128);
  block.cross_attention.context_width =
      config.Int("cross_attention_dim", kWidth, 2048);
  block.modulation = {.vectors = 6};
  AddLayers(config.Int("num_layers", kLayers, 28), block, &module);
  FinishGenerator(width, out, 2 * width, &module);
  module.token_rules = {LatentVideos(config, 32, patch, 8)};
  config.notes().Assume("texts are padded to 128 tokens");
  draft->Add(std::move(module));
}

void ReadCogVideoX(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 30, 64);
  const int64_t width = shape.width;
  const int64_t in = config.Int("in_channels", kChannels, 16);
  const int64_t out = config.IsNull("out_channels")
                          ? in
                          : config.Int("out_channels", kChannels, 16);
  const int64_t patch = config.Int("patch_size", kPatch, 2);
  const int64_t time = config.Int("time_embed_dim", kWidth, 512);
  int64_t frames = 1;
  int64_t embedders = Affine(width, time) + Affine(time, time) +
                      Affine(config.Int("text_embed_dim", kWidth, 4096), width);
  if (const auto depth = config.Optional("patch_size_t", kPatch)) {
    frames = *depth;
  }
  if (const auto ofs = config.Optional("ofs_embed_dim", kWidth)) {
    embedders += Affine(*ofs, *ofs) + Affine(*ofs, *ofs);
  }
  if (config.Flag("use_learned_positional_embeddings", false)) {
    config.Fail("use_learned_positional_embeddings",
                "is true; the size of that table is not known here. Make the "
                "model file by hand (docs/tutorial.md)");
  }
  const bool affine = config.Flag("norm_elementwise_affine", true);
  const bool bias = config.Flag("attention_bias", true);
  ModuleSpec module =
      BeginGenerator(config, in * patch * patch * frames, width, embedders);
  // Norms of queries and keys with biases, two modulated norms.
  const int64_t vectors = 4 * shape.head_dim + (affine ? 4 * width : 0) +
                          Affine(time, 6 * width) * 2 - 12 * width * time;
  LayerSpec block =
      TransformerLayer("block", width, FullAttention(width, shape.heads),
                       {.hidden = 4 * width}, {bias, true, true}, vectors);
  block.modulation = {.vectors = 12, .condition_width = time};
  AddLayers(config.Int("num_layers", kLayers, 30), block, &module);
  FinishGenerator(width, out * patch * patch * frames,
                  (affine ? 4 * width : 0) + Affine(time, 2 * width), &module);
  module.token_rules = {LatentVideos(config, 8, patch, 4 * frames)};
  NoteJointText(config);
  draft->Add(std::move(module));
}

}  // namespace pipeloom::formats
