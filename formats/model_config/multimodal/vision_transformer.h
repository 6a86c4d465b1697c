// Vision transformers that several architectures share.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_VISION_TRANSFORMER_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_VISION_TRANSFORMER_H_

#include <cstdint>

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// An encoder and the sizes that its projector needs.
struct VisionEncoder {
  ModuleSpec module{};
  int64_t width = 0;
  int64_t image_side = 0;     // px
  int64_t patch_side = 0;     // px
  int64_t patches_a_row = 0;  // image_side / patch_side.

  int64_t patches() const { return patches_a_row * patches_a_row; }
};

// The sizes that a class of SigLIP has for absent fields.
struct SiglipDefaults {
  int64_t width = 768;
  int64_t ffn = 3072;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t image_side = 224;
  int64_t patch_side = 16;
  bool pooling_head = true;
};

// Reads a SigLIP encoder: patch embedding and learned positions, layers with
// norms and biases, a norm at the end, and the pooling head if
// `vision_use_head`.
VisionEncoder ReadSiglip(const ConfigNode& vision,
                         const SiglipDefaults& defaults);

// The sizes that a class of CLIP has for absent fields.
struct ClipDefaults {
  int64_t width = 768;
  int64_t ffn = 3072;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t image_side = 224;
  int64_t patch_side = 32;
};

// Reads a CLIP encoder: as SigLIP's without its pooling head, with a class
// token, a norm before the layers, and no bias in the patch embedding.
VisionEncoder ReadClip(const ConfigNode& vision, const ClipDefaults& defaults);

// Reads a Pixtral encoder: rotary positions, gated feed-forward, no biases.
VisionEncoder ReadPixtral(const ConfigNode& vision);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_VISION_TRANSFORMER_H_
