// A model as the planner sees it: modules by modality, the shapes of their
// layers, how samples become tokens, and which module feeds which.
//
//     vision encoder --(merged image tokens)--> language backbone --> generator
//
// Sizes are counts of elements unless the name has a unit. A ModelSpec is plain
// data; ValidateModelSpec checks it.
#ifndef PIPELOOM_IR_JOB_MODEL_SPEC_H_
#define PIPELOOM_IR_JOB_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "ir/ids.h"

namespace pipeloom {

// The kinds of data in a sample.
enum class Modality { kText, kImage, kVideo, kAudio };
// The role of a module in its model.
enum class ModuleRole { kEncoder, kBackbone, kGenerator };

// The keys that a query attends to.
enum class AttentionKind {
  kNone,
  kCausal,  // Earlier tokens of its own sample; of them the last `window`.
  kFull,    // All tokens of its own sequence (image, clip, tile).
  kWindow,  // Full, inside blocks of `window` tokens.
};

// Self-attention. Plain and grouped-query attention need heads, kv_heads and
// head_dim. Low-rank projections (h hidden, a heads, d head_dim, r rope_dim, v
// value_dim):
//
//   MFA (Step-3):       h -> query_rank -> a d; keys and values h -> kv_heads d
//   MLA (DeepSeek-V2):  h -> query_rank -> a d; h -> kv_rank + r, and then
//                       kv_rank -> a (d - r) keys and a v values; the r rotary
//                       elements of a key are shared by all heads
struct AttentionSpec {
  AttentionKind kind = AttentionKind::kNone;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;    // Width of queries and keys.
  int64_t window = 0;      // Tokens, for kWindow and kCausal (0: all).
  int64_t query_rank = 0;  // Low-rank query projection; 0: none.
  int64_t kv_rank = 0;     // Low-rank keys and values (MLA); 0: none.
  // Rotary part of head_dim shared by all heads; with kv_rank.
  int64_t rope_dim = 0;
  int64_t value_dim = 0;  // Width of values and outputs; 0: head_dim.
  // Whether queries and keys pass a norm over head_dim in a kernel of its own.
  bool query_key_norms = false;
  // Share of the query-key pairs that a sparse kernel works on, in (0, 1].
  double density = 1;
  // Whether the output of each head is multiplied by the sigmoid of a gate,
  // which the query projection makes too (Qwen3-Next). Without low ranks.
  bool output_gate = false;
  // Whether the rotation of queries and keys also multiplies them by a factor,
  // as YaRN does, which the fused kernel of Megatron-Core does not take.
  bool scaled_rotary = false;
  bool operator==(const AttentionSpec&) const = default;

  int64_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
  // Widths of what the projections without low ranks make and take.
  int64_t projected() const {
    return heads * (head_dim + (output_gate ? value_width() : 0)) +
           kv_heads * (head_dim + value_width());
  }
  int64_t mixed() const { return heads * value_width(); }
};

// A state-space mixer in place of self-attention (Mamba-2), causal and linear
// in the length of a sequence; heads = 0: none. One product makes a gate z and
// inputs x of `heads` x head_dim, B and C of `groups` x state_dim, and a step
// of each head; x, B and C pass a convolution over `kernel` tokens; head h has
// the state S (head_dim x state_dim):
//
//   S_t = exp(-a dt_t) S_{t-1} + dt_t x_t B_t^T      y_t = S_t C_t + D x_t
//
// computed by chunks of `chunk` tokens: inside of a chunk as attention, between
// chunks by their states. The gated result passes a norm and the last product.
struct StateSpaceSpec {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state_dim = 0;
  int64_t groups = 1;   // Heads of a group share B and C.
  int64_t kernel = 4;   // Tokens.
  int64_t chunk = 128;  // Tokens.
  bool operator==(const StateSpaceSpec&) const = default;

  int64_t inner() const { return heads * head_dim; }
  int64_t convolved() const { return inner() + 2 * groups * state_dim; }
  // Widths of what the projections make and take.
  int64_t projected() const { return inner() + convolved() + heads; }
  int64_t mixed() const { return inner(); }
  // Parameters of the convolution with its bias, the norm, and a, D and the
  // bias of the step of each head.
  int64_t vectors() const {
    return convolved() * (kernel + 1) + inner() + 3 * heads;
  }
};

// A gated delta net in place of self-attention (Qwen3-Next), causal and linear
// in the length of a sequence; value_heads = 0: none. One product makes queries
// and keys of `key_heads` x key_dim, values and a gate of `value_heads` x
// value_dim, and a decay g and a strength b of each value head; queries, keys
// and values pass a convolution over `kernel` tokens, queries and keys a norm;
// each value head has the state S (key_dim x value_dim):
//
//   S_t = g_t (1 - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T      o_t = S_t^T q_t
//
// computed by chunks of `chunk` tokens, each of which needs the state that the
// one before it left. The result passes a norm, the gate and the last product.
struct DeltaNetSpec {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t kernel = 4;  // Tokens.
  int64_t chunk = 64;  // Tokens.
  bool operator==(const DeltaNetSpec&) const = default;

  int64_t convolved() const {
    return 2 * key_heads * key_dim + value_heads * value_dim;
  }
  // Widths of what the projections make and take.
  int64_t projected() const {
    return convolved() + value_heads * (value_dim + 2);
  }
  int64_t mixed() const { return value_heads * value_dim; }
  // Parameters of the convolution, the norm of a head, and two of each head.
  int64_t vectors() const {
    return convolved() * kernel + value_dim + 2 * value_heads;
  }
};

// Attention of this module's tokens to a context from another module (the
// text that conditions a diffusion transformer). heads = 0: none.
struct CrossAttentionSpec {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t context_width = 0;  // Width of a context token.
  // Context tokens of an instance, if the condition is padded or cut to a fixed
  // length; 0: the tokens that the feeding modules produce.
  int64_t context_tokens = 0;
  bool operator==(const CrossAttentionSpec&) const = default;
};

// Feed-forward part: dense (hidden), or experts, of which each token passes
// through experts_per_token + shared_experts; none if hidden and experts are 0.
struct FfnSpec {
  int64_t hidden = 0;
  bool gated = false;  // Three matrices (SwiGLU) instead of two.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t shared_experts = 0;
  int64_t expert_hidden = 0;
  // Whether the last product of an expert adds a bias, weighted as its result.
  // The parameters count among LayerSpec::vector_parameters.
  bool expert_biases = false;
  bool clamped = false;  // Gate and input of the activation have a limit.
  // Width of the rows that routed experts take and return, between two more
  // products of the layer (LatentMoE); 0: the layer's own.
  int64_t latent = 0;
  bool operator==(const FfnSpec&) const = default;

  // Width of the routed experts' rows in a layer of `layer_width`.
  int64_t row_width(int64_t layer_width) const {
    return latent > 0 ? latent : layer_width;
  }
};

// A linear map, with its widths in elements.
struct LinearSpec {
  int64_t in = 0;
  int64_t out = 0;
  bool operator==(const LinearSpec&) const = default;
};

// Adaptive norms of a diffusion transformer: `vectors` shifts, scales and gates
// of the layer's width, 6 for a block of attention and feed-forward; 0: none.
struct ModulationSpec {
  int64_t vectors = 0;
  // Width of the condition. A matrix product of each layer turns it into the
  // vectors, once per instance; 0: all layers share a table of vectors.
  int64_t condition_width = 0;
  bool operator==(const ModulationSpec&) const = default;
};

// A convolution with its norm and activation, applied at every token of the
// layer.
struct ConvolutionSpec {
  int64_t in = 0;      // Channels.
  int64_t out = 0;     // Channels.
  int64_t kernel = 3;  // Elements per side.
  int64_t depth = 1;   // Elements in time, for video.
  // Tokens per side for each token of the layer: 2 after the resolution was
  // doubled.
  double scale = 1;
  bool operator==(const ConvolutionSpec&) const = default;

  int64_t weights() const { return in * out * kernel * kernel * depth; }
};

// The kinds of layers.
enum class LayerKind {
  // Self-attention or another token mixer, optional cross-attention,
  // feed-forward; each of them may be absent.
  kTransformer,
  kEmbedding,     // Look-up in a vocab x hidden table.
  kLossHead,      // hidden x vocab product and cross-entropy.
  kLinears,       // `linears` one after another: patch embedding, projector.
  kFixedWork,     // A part known only by its totals, fixed_flops_*.
  kConvolutions,  // `convolutions` one after another: U-Net and VAE blocks.
};

// Number format of a module's products and activations. Gradients are summed in
// fp32 and the optimizer keeps fp32 in any case.
enum class Precision {
  kBf16,
  kFp8,   // Products in fp8 with bf16 weights and results; attention in bf16.
  kFp32,  // TF32 products.
};

// One layer with its shapes. Fields that name a kind are used by it only.
struct LayerSpec {
  LayerKind kind = LayerKind::kTransformer;
  std::string name{};  // Display name: "block", "patch_embedding".
  int64_t hidden = 0;  // Width of the output tokens.
  // At most one token mixer: attention, state_space or delta_net.
  AttentionSpec attention{};
  StateSpaceSpec state_space{};
  DeltaNetSpec delta_net{};
  CrossAttentionSpec cross_attention{};
  FfnSpec ffn{};
  int64_t vocab = 0;  // kEmbedding, kLossHead.
  std::vector<LinearSpec> linears{};
  ModulationSpec modulation{};  // kTransformer.
  // kTransformer: whether products of attention and of a dense feed-forward
  // part add a bias. The parameters count among vector_parameters.
  bool biases = false;
  // Whether dropout follows each block of a kTransformer ahead of the residual
  // sum, or the look-up of a kEmbedding.
  bool dropout = false;
  std::vector<ConvolutionSpec> convolutions{};
  // The layer works on 1/downsample of the module's token grid per side, as a
  // level of a U-Net does. >= 1.
  double downsample = 1;
  // Parameters in none of the matrix products above, nor inside of state_space
  // and delta_net: norms, biases, position tables; for kFixedWork all
  // parameters.
  int64_t vector_parameters = 0;
  // Whether the loss head shares the embedding's table and adds no parameters.
  bool tied = false;
  // Whether the layer works on the module's output tokens (after a spatial
  // merge) instead of its input tokens, as projectors do.
  bool on_output_tokens = false;
  double fixed_flops_per_token = 0;  // kFixedWork, forward.
  // kFixedWork, forward; per image or clip.
  double fixed_flops_per_instance = 0;
  // Activation bytes kept for the backward, per token and per instance, at 16
  // bits an element.
  double fixed_activation_bytes_per_token = 0;
  double fixed_activation_bytes_per_instance = 0;
  bool operator==(const LayerSpec&) const = default;
};

// Returns whether the layer has a token mixer.
bool HasMixer(const LayerSpec& layer);
// Returns the blocks of a kTransformer layer, each with a norm and a residual
// sum: token mixer, cross-attention, feed-forward.
int BlocksOf(const LayerSpec& layer);
// Returns the width that the projections ahead of the token mixer make, and the
// one that the projection after it takes; 0 without a mixer.
// REQUIRES: attention has no low ranks.
int64_t MixerInputs(const LayerSpec& layer);
int64_t MixerOutputs(const LayerSpec& layer);
// Returns the parameters of the token mixer in none of its products, which are
// divided by tp as its heads are.
int64_t MixerVectors(const LayerSpec& layer);
// Returns the parameters in matrix products: all experts, the vocab table of a
// loss head, the product of the modulation.
int64_t MatrixParameters(const LayerSpec& layer);
// Returns the matrix parameters that one token is multiplied by: of the
// experts, only those it is routed to.
int64_t ActiveMatrixParameters(const LayerSpec& layer);
// Returns all stored parameters: matrices, vectors, the embedding table.
int64_t Parameters(const LayerSpec& layer);

// How the data of a sample become tokens of a module. Sources: the processors
// of the models named (see workloads/models/*.json).
enum class TokenRuleKind {
  // Every image is scaled to side x side; (side/patch)^2 tokens in, / merge^2
  // out (DIP section 5: 728, 14, 4 -> 2704 in, 169 out).
  kFixedSquare,
  // Both sides are rounded to multiples of patch*merge, then scaled so that the
  // output tokens lie in [min_tokens, max_tokens] (Qwen2-VL smart resize).
  // Video: an even number of frames, sampled at `fps`, in [min_frames,
  // max_frames]; each pair of frames shares a grid of [min_tokens, max_tokens]
  // output tokens, at most max_total_tokens in all.
  kDynamicResolution,
  // The image is cut into the best grid, by aspect ratio, of at most max_tiles
  // tiles of `side` px, plus a thumbnail if there is more than one;
  // tokens_per_tile in, output_tokens_per_tile out, extra_tokens more output
  // tokens per image (InternVL).
  kTiles,
  // One global view of `side` px and crops of crop_side px (Step-3):
  // global (side/patch)^2 in, output_tokens_per_tile out; crop
  // (crop_side/patch)^2 in, output_tokens_per_crop out; extra_tokens a view.
  kGlobalAndCrops,
  // Latents of a VAE: (W/spatial_stride)*(H/spatial_stride) tokens per latent
  // frame; frame_group frames -> latents_per_group latent frames. Clips are cut
  // to max_seconds and sampled at fps; an unknown size is default_width x
  // default_height. extra_tokens more pass through the layers in the same
  // sequence: text that is padded to this length.
  kLatent,
  // tokens_per_second in, output_tokens_per_second out; chunks of
  // chunk_seconds are separate attention sequences (0: one sequence).
  kAudioRate,
  // The sample's text tokens, at most max_tokens (0: all).
  kText,
  // A view of side x side px and the best grid, by usable pixels, of at most
  // max_tiles columns and rows of such tiles; (side/patch)^2 in for each. Out:
  // those of the view and of the grid without its margins, scaled to max_tokens
  // if it is 1.1^2 times as large, and one for each of its rows. Of several
  // images in a sample, each is one view and one token (LLaVA-OneVision).
  kAnyResolution,
};

// A token rule with its constants. Each kind uses some of the fields.
struct TokenRule {
  TokenRuleKind kind = TokenRuleKind::kText;
  Modality modality = Modality::kText;  // The part of a sample that is counted.
  int64_t side = 0;                     // px
  int64_t patch = 0;                    // px
  int64_t merge = 1;  // patches per side that become one token
  int64_t min_tokens = 0;
  int64_t max_tokens = 0;
  int64_t max_total_tokens = 0;
  double fps = 0;  // frames per second sampled
  int64_t min_frames = 0;
  int64_t max_frames = 0;
  int64_t max_tiles = 0;
  int64_t tokens_per_tile = 0;
  int64_t output_tokens_per_tile = 0;
  int64_t crop_side = 0;  // px
  int64_t output_tokens_per_crop = 0;
  int64_t extra_tokens = 0;
  int64_t spatial_stride = 0;  // px
  int64_t frame_group = 1;
  int64_t latents_per_group = 1;
  double max_seconds = 0;
  int64_t default_width = 0;   // px, if the sample does not say
  int64_t default_height = 0;  // px, if the sample does not say
  double tokens_per_second = 0;
  double output_tokens_per_second = 0;
  double chunk_seconds = 0;
  bool operator==(const TokenRule&) const = default;
};

// One network of a model.
struct ModuleSpec {
  std::string name{};  // Unique in the model: "vision_encoder".
  ModuleRole role = ModuleRole::kBackbone;
  IdVector<LayerId, LayerSpec> layers{};
  Precision precision = Precision::kBf16;
  // Rank of low-rank adapters (LoRA) at the input and output projections of
  // every token mixer. They are trained in place of the module's own
  // weights, which are frozen. 0: none; the own weights are trained.
  int64_t adapter_rank = 0;
  // The parts of a sample that this module works on. A backbone without rules
  // counts text tokens and the output tokens of the modules that feed it.
  std::vector<TokenRule> token_rules{};
  std::string source{};  // Where the numbers come from.
  bool operator==(const ModuleSpec&) const = default;
};

// Returns the parameters of all layers of a module, without adapters.
int64_t Parameters(const ModuleSpec& module);

// Returns whether any of the module's layers routes tokens to experts.
bool HasExperts(const ModuleSpec& module);

// The output of `from` goes to `to`: as tokens of its sequence or, with
// as_context, only as the context of its cross-attention.
struct ModuleEdge {
  ModuleId from{};
  ModuleId to{};
  bool as_context = false;
  bool operator==(const ModuleEdge&) const = default;
};

// A multimodal model.
struct ModelSpec {
  std::string name{};
  IdVector<ModuleId, ModuleSpec> modules{};  // In data-flow order.
  std::vector<ModuleEdge> edges{};
  int64_t published_parameters = 0;  // 0: not published.
  std::string source{};
  // Parts of the network that the layers lack, in words, because whoever wrote
  // the model could not find them out; empty: it is whole.
  std::vector<std::string> missing{};
  bool operator==(const ModelSpec&) const = default;
};

// Returns the parameters of all modules.
int64_t Parameters(const ModelSpec& model);

// Returns whether any module has experts.
bool HasExperts(const ModelSpec& model);

// Checks the model. Returns InvalidArgument that names the module, layer or
// edge: no module or layer, duplicate names, dimensions that are negative or
// missing for the kind, an edge to nowhere, or modules that feed each other in
// a circle. Edges must go from a smaller ModuleId to a larger one.
absl::Status ValidateModelSpec(const ModelSpec& model);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_MODEL_SPEC_H_
