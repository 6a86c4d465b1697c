// The names of a model file's enums, which are those of
// proto/pipeloom/v1/model.proto.
#ifndef PIPELOOM_FORMATS_JOB_MODEL_NAMES_H_
#define PIPELOOM_FORMATS_JOB_MODEL_NAMES_H_

#include <cstddef>
#include <utility>

#include "absl/strings/string_view.h"
#include "ir/job/model_spec.h"

namespace pipeloom::formats {

inline constexpr std::pair<absl::string_view, Modality> kModalities[] = {
    {"MODALITY_TEXT", Modality::kText},
    {"MODALITY_IMAGE", Modality::kImage},
    {"MODALITY_VIDEO", Modality::kVideo},
    {"MODALITY_AUDIO", Modality::kAudio},
};
inline constexpr std::pair<absl::string_view, ModuleRole> kRoles[] = {
    {"MODULE_ROLE_ENCODER", ModuleRole::kEncoder},
    {"MODULE_ROLE_BACKBONE", ModuleRole::kBackbone},
    {"MODULE_ROLE_GENERATOR", ModuleRole::kGenerator},
};
inline constexpr std::pair<absl::string_view, AttentionKind> kAttentionKinds[] =
    {
        {"ATTENTION_KIND_NONE", AttentionKind::kNone},
        {"ATTENTION_KIND_CAUSAL", AttentionKind::kCausal},
        {"ATTENTION_KIND_FULL", AttentionKind::kFull},
        {"ATTENTION_KIND_WINDOW", AttentionKind::kWindow},
};
inline constexpr std::pair<absl::string_view, LayerKind> kLayerKinds[] = {
    {"LAYER_KIND_TRANSFORMER", LayerKind::kTransformer},
    {"LAYER_KIND_EMBEDDING", LayerKind::kEmbedding},
    {"LAYER_KIND_LOSS_HEAD", LayerKind::kLossHead},
    {"LAYER_KIND_LINEARS", LayerKind::kLinears},
    {"LAYER_KIND_FIXED_WORK", LayerKind::kFixedWork},
    {"LAYER_KIND_CONVOLUTIONS", LayerKind::kConvolutions},
};
inline constexpr std::pair<absl::string_view, Precision> kPrecisions[] = {
    {"PRECISION_BF16", Precision::kBf16},
    {"PRECISION_FP8", Precision::kFp8},
    {"PRECISION_FP32", Precision::kFp32},
};
inline constexpr std::pair<absl::string_view, TokenRuleKind> kTokenRuleKinds[] =
    {
        {"TOKEN_RULE_KIND_FIXED_SQUARE", TokenRuleKind::kFixedSquare},
        {"TOKEN_RULE_KIND_DYNAMIC_RESOLUTION",
         TokenRuleKind::kDynamicResolution},
        {"TOKEN_RULE_KIND_TILES", TokenRuleKind::kTiles},
        {"TOKEN_RULE_KIND_GLOBAL_AND_CROPS", TokenRuleKind::kGlobalAndCrops},
        {"TOKEN_RULE_KIND_LATENT", TokenRuleKind::kLatent},
        {"TOKEN_RULE_KIND_AUDIO_RATE", TokenRuleKind::kAudioRate},
        {"TOKEN_RULE_KIND_TEXT", TokenRuleKind::kText},
        {"TOKEN_RULE_KIND_ANY_RESOLUTION", TokenRuleKind::kAnyResolution},
};

// Returns the name of a value; "" if it has none.
template <typename Enum, size_t n>
absl::string_view NameIn(const std::pair<absl::string_view, Enum> (&names)[n],
                         Enum value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return "";
}

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_MODEL_NAMES_H_
