// The sizes that the configurations of all language models have under the same
// names, and the module that they make.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_DECODER_SHAPE_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_DECODER_SHAPE_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"
#include "ir/job/model_spec.h"

namespace pipeloom::formats {

// The sizes of a class that its configuration may leave out; 0: it must not,
// except that head_dim is then hidden / heads and kv_heads is heads.
struct DecoderDefaults {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  bool tied = false;
};

struct DecoderShape {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t vocab = 0;
  AttentionSpec attention{};  // Causal.
  bool tied = false;
};

// Reads the sizes. A missing one is in the notes, and is 0.
DecoderShape ReadDecoderShape(const ConfigNode& config,
                              const DecoderDefaults& defaults);

// Returns whether the rotation of queries and keys multiplies them by a factor:
// YaRN's, unless the configuration divides it by that of all dimensions, which
// is the same in every published model. Without a rotation in the configuration
// returns `otherwise`.
bool HasScaledRotary(const ConfigNode& config, bool otherwise);

// Returns a backbone without its transformer layers: only the embedding. The
// caller adds the layers and calls FinishDecoder.
ModuleSpec BeginDecoder(const DecoderShape& shape);
// Adds the loss head and its norm of `norm_parameters`.
void FinishDecoder(const DecoderShape& shape, int64_t norm_parameters,
                   ModuleSpec* module);

inline constexpr absl::string_view kSlidingAttention = "sliding_attention";

// Fails if the configuration's `layer_types` has an item that is neither
// "full_attention" nor `other`, which a class does not have or which is
// misspelt.
void CheckLayerTypes(const ConfigNode& config, absl::string_view other);

// Lets transformer layers attend to the last `window` tokens only (0: to all):
// those that `layer_types` calls "sliding_attention" or, if the configuration
// has no such list, those of `by_default`, indexed by layer.
void SetWindows(const ConfigNode& config, int64_t window,
                absl::FunctionRef<bool(int64_t)> by_default,
                ModuleSpec* module);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_DECODER_SHAPE_H_
