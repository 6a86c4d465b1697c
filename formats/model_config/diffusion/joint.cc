// Transformers of two streams, latents and text, with one attention: FLUX,
// Stable Diffusion 3, Qwen-Image, HunyuanVideo.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/diffusion/transformer.h"

namespace pipeloom::formats {
namespace {

constexpr ConfigRange kChannels{1, 4096};
constexpr ConfigRange kPatch{1, 64};

}  // namespace

void ReadFlux(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 24, 128);
  const int64_t width = shape.width;
  const int64_t in = config.Int("in_channels", kChannels, 64);
  const int64_t out =
      config.Has("out_channels") ? config.Int("out_channels", kChannels) : in;
  const int64_t patch = config.Int("patch_size", kPatch, 1);
  const bool guidance = config.Flag("guidance_embeds", false);
  const int64_t embedders =
      (guidance ? 2 : 1) * TimestepEmbedding(width) +
      TwoAffine(config.Int("pooled_projection_dim", kWidth, 768), width) +
      Affine(config.Int("joint_attention_dim", kWidth, 4096), width);
  ModuleSpec module = BeginGenerator(config, in, width, embedders);
  AddLayers(config.Int("num_layers", kLayers, 19),
            MakeJointLayer(shape, {.ffn = 4 * width, .query_key_norms = true}),
            &module);
  AddLayers(config.Int("num_single_layers", {0, kLayers.high}, 38),
            MakeSingleLayer(shape, 4 * width), &module);
  FinishGenerator(width, patch * patch * out, Affine(width, 2 * width),
                  &module);
  // Latents come in packs of 2 x 2. Models without guidance are distilled for
  // shorter texts.
  module.token_rules = {LatentImages(config, 8, 2 * patch)};
  const int64_t text = guidance ? 512 : 256;
  module.token_rules[0].extra_tokens = text;
  config.notes().Assume(absl::StrFormat(
      "texts are padded to %d tokens, which pass through all layers", text));
  draft->Add(std::move(module));
}

void ReadStableDiffusion3(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 18, 64);
  const int64_t width = shape.width;
  const int64_t in = config.Int("in_channels", kChannels, 16);
  const int64_t out = config.Int("out_channels", kChannels, 16);
  const int64_t patch = config.Int("patch_size", kPatch, 2);
  if (config.Int("caption_projection_dim", kWidth, 1152) != width) {
    config.Fail("caption_projection_dim",
                "must be num_attention_heads x attention_head_dim");
  }
  const int64_t embedders =
      TimestepEmbedding(width) +
      TwoAffine(config.Int("pooled_projection_dim", kWidth, 2048), width) +
      Affine(config.Int("joint_attention_dim", kWidth, 4096), width);
  const bool norms = config.Has("qk_norm");
  const std::vector<int64_t> dual =
      config.Ints("dual_attention_layers", {0, kLayers.high});
  ModuleSpec module =
      BeginGenerator(config, in * patch * patch, width, embedders);
  const int64_t layers = config.Int("num_layers", kLayers, 18);
  for (int64_t i = 0; i < layers; ++i) {
    const bool twice = std::find(dual.begin(), dual.end(), i) != dual.end();
    LayerSpec layer = MakeJointLayer(shape, {.ffn = 4 * width,
                                             .vectors = twice ? 9 : 6,
                                             .query_key_norms = norms,
                                             .last = i == layers - 1});
    if (twice) {
      layer.vector_parameters +=
          4 * Affine(width, width) + (norms ? 2 * shape.head_dim : 0);
    }
    module.layers.push_back(layer);
  }
  if (!dual.empty()) {
    config.notes().Assume(
        "the second attention of dual_attention_layers has parameters, but no "
        "work");
  }
  FinishGenerator(width, patch * patch * out, Affine(width, 2 * width),
                  &module);
  module.token_rules = {LatentImages(config, 8, patch)};
  NoteJointText(config);
  draft->Add(std::move(module));
}

void ReadQwenImage(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 24, 128);
  const int64_t width = shape.width;
  const int64_t in = config.Int("in_channels", kChannels, 64);
  const int64_t out = config.Int("out_channels", kChannels, 16);
  const int64_t patch = config.Int("patch_size", kPatch, 2);
  const int64_t text = config.Int("joint_attention_dim", kWidth, 3584);
  ModuleSpec module = BeginGenerator(
      config, in, width, TimestepEmbedding(width) + text + Affine(text, width));
  AddLayers(config.Int("num_layers", kLayers, 60),
            MakeJointLayer(shape, {.ffn = 4 * width, .query_key_norms = true}),
            &module);
  FinishGenerator(width, patch * patch * out, Affine(width, 2 * width),
                  &module);
  module.token_rules = {LatentImages(config, 8, patch)};
  NoteJointText(config);
  draft->Add(std::move(module));
}

void ReadHunyuanVideo(const ConfigNode& config, Draft* draft) {
  const DiffusionShape shape = ReadDiffusionShape(config, 24, 128);
  const int64_t width = shape.width;
  const int64_t in = config.Int("in_channels", kChannels, 16);
  const int64_t out = config.Int("out_channels", kChannels, 16);
  const int64_t patch = config.Int("patch_size", kPatch, 2);
  const int64_t values = patch * patch * config.Int("patch_size_t", kPatch, 1);
  const auto ffn = static_cast<int64_t>(static_cast<double>(width) *
                                        config.Number("mlp_ratio", 0.1, 64, 4));
  const int64_t text = config.Int("text_embed_dim", kWidth, 4096);
  // A refiner of the text: its own embeddings, and layers with a modulated end.
  const int64_t refiner_ffn = 2 * width * ffn + ffn + width;
  const int64_t refiner = TimestepEmbedding(width) + TwoAffine(text, width) +
                          Affine(text, width) +
                          config.Int("num_refiner_layers", {0, 64}, 2) *
                              (4 * width + 4 * Affine(width, width) +
                               refiner_ffn + Affine(width, 2 * width));
  const int64_t embedders =
      (config.Flag("guidance_embeds", true) ? 2 : 1) *
          TimestepEmbedding(width) +
      TwoAffine(config.Int("pooled_projection_dim", kWidth, 768), width) +
      refiner;
  ModuleSpec module = BeginGenerator(config, in * values, width, embedders);
  AddLayers(config.Int("num_layers", kLayers, 20),
            MakeJointLayer(shape, {.ffn = ffn, .query_key_norms = true}),
            &module);
  AddLayers(config.Int("num_single_layers", {0, kLayers.high}, 40),
            MakeSingleLayer(shape, ffn), &module);
  FinishGenerator(width, values * out, Affine(width, 2 * width), &module);
  module.token_rules = {LatentVideos(config, 8, patch, 4)};
  NoteJointText(config);
  draft->Add(std::move(module));
}

}  // namespace pipeloom::formats
