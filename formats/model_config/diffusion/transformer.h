// Parts that the diffusion transformers share.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_DIFFUSION_TRANSFORMER_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_DIFFUSION_TRANSFORMER_H_

#include <cstdint>

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// The sizes of every such transformer.
struct DiffusionShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t width = 0;  // heads x head_dim.
};

// Reads num_attention_heads and attention_head_dim.
DiffusionShape ReadDiffusionShape(const ConfigNode& config, int64_t heads,
                                  int64_t head_dim);

// Returns the parameters of a product with a bias, of two with an activation
// between them, and of the embedding of a timestep (256 values of a sine).
int64_t Affine(int64_t in, int64_t out);
int64_t TwoAffine(int64_t in, int64_t out);
int64_t TimestepEmbedding(int64_t width);

// Begins the generator: latent patches of `values` become tokens.
// `embedders` are the parameters of the embeddings of time and text, whose work
// is not counted.
ModuleSpec BeginGenerator(const ConfigNode& config, int64_t values,
                          int64_t width, int64_t embedders);
// Adds the product to patches of `values`; `others` are further parameters.
void FinishGenerator(int64_t width, int64_t values, int64_t others,
                     ModuleSpec* module);

// A layer whose text tokens have weights of their own but share the attention
// (MM-DiT). A token takes the weights of one stream; those of the other one are
// counted as parameters without products. Both modulations have products.
struct JointLayer {
  int64_t ffn = 0;               // Width, in either stream.
  int64_t vectors = 6;           // The modulation of one stream.
  bool query_key_norms = false;  // Norms of a head's width, in both.
  bool last = false;  // Its text stream ends with the attention (SD3).
};
LayerSpec MakeJointLayer(const DiffusionShape& shape, const JointLayer& layer);
// A layer of both streams in one, attention and feed-forward in parallel.
LayerSpec MakeSingleLayer(const DiffusionShape& shape, int64_t ffn);

// Notes that the text tokens of the shared attention are not counted.
void NoteJointText(const ConfigNode& config);

// Return the rule of a VAE that makes a latent of `pixels` x `pixels` px, with
// patches of `patch` x `patch` latents, and for videos of `frames` frames.
TokenRule LatentImages(const ConfigNode& config, int64_t pixels, int64_t patch);
TokenRule LatentVideos(const ConfigNode& config, int64_t pixels, int64_t patch,
                       int64_t frames);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_DIFFUSION_TRANSFORMER_H_
