#include "formats/model_config/megatron_model.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

// Arguments that, if set, make another model than GPT.
constexpr absl::string_view kOtherModels[] = {
    "attention_output_gate",
    "encoder_tensor_model_parallel_size",
    "experimental_attention_variant",
    "heterogeneous_layers_config_encoded_json",
    "heterogeneous_layers_config_path",
    "hybrid_attention_ratio",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "is_hybrid_model",
    "language_model_type",
    "linear_attention_freq",
    "moe_latent_size",
    "retro_add_retriever",
    "vision_model_type",
};

class MegatronReader {
 public:
  MegatronReader(const MegatronArguments& arguments, ConfigNotes* notes)
      : arguments_(arguments), notes_(*notes) {}

  ModuleSpec Read() {
    for (const absl::string_view name : kOtherModels) {
      const std::string value = arguments_.Text(name);
      double number = 1;
      if (arguments_.Flag(name, false) &&
          !(absl::SimpleAtod(value, &number) && number == 0)) {
        notes_.Miss(absl::StrFormat(
            "a reader of the layers that argument \"%s\" makes", name));
      }
    }
    hidden_ = Required("hidden_size", kWidth);
    layers_ = Required("num_layers", kLayers);
    ReadNorms();
    ReadAttention();
    ReadFfn();
    ReadDropout();
    const std::vector<bool> sparse =
        experts_.experts > 0
            ? arguments_.Pattern("moe_layer_freq", layers_, &notes_)
            : std::vector<bool>(layers_, false);
    const std::vector<bool> windows = Windows();
    ModuleSpec module;
    module.name = "backbone";
    module.role = ModuleRole::kBackbone;
    module.layers.push_back(Embedding());
    for (int64_t i = 0; i < layers_; ++i) {
      module.layers.push_back(Layer(sparse[i], windows[i]));
    }
    const LayerSpec head = LossHeadLayer(vocab_, hidden_, tied_, norm_);
    const int64_t predicted =
        arguments_.Int("mtp_num_layers", {0, 64}, &notes_).value_or(0);
    for (int64_t i = 0; i < predicted && layers_ > 0; ++i) {
      module.layers.push_back(LinearsLayer("prediction_input",
                                           {{2 * hidden_, hidden_}},
                                           /*bias=*/false, 2 * norm_));
      module.layers.push_back(Layer(sparse.back(), windows.back()));
      LayerSpec again = head;
      again.tied = true;
      module.layers.push_back(std::move(again));
    }
    module.layers.push_back(head);
    return module;
  }

 private:
  int64_t Required(absl::string_view name, ConfigRange range) {
    const auto value = arguments_.Int(name, range, &notes_);
    if (!value.has_value()) notes_.Miss(FlagOf(name));
    return value.value_or(0);
  }
  int64_t IntOr(absl::string_view name, ConfigRange range, int64_t otherwise) {
    const auto value = arguments_.Int(name, range, &notes_);
    if (!value.has_value()) {
      notes_.Assume(absl::StrFormat("%s is %d", FlagOf(name), otherwise));
    }
    return value.value_or(otherwise);
  }
  static std::string FlagOf(absl::string_view name) {
    std::string flag = absl::StrCat("--", name);
    for (char& c : flag) c = c == '_' ? '-' : c;
    return flag;
  }

  void ReadNorms() {
    const std::string name = arguments_.Text("normalization");
    if (name.empty()) notes_.Assume("--normalization is LayerNorm");
    is_layer_norm_ = !absl::EqualsIgnoreCase(name, "RMSNorm");
    if (is_layer_norm_ && !name.empty() &&
        !absl::EqualsIgnoreCase(name, "LayerNorm")) {
      arguments_.Fail(
          "normalization",
          absl::StrCat("is ", name, "; it must be LayerNorm or RMSNorm"),
          &notes_);
    }
    norm_ = NormOf(hidden_);
  }
  int64_t NormOf(int64_t width) const {
    return is_layer_norm_ ? 2 * width : width;
  }

  void ReadAttention() {
    bias_ = arguments_.Flag("add_bias_linear", true);
    qkv_bias_ = bias_ || arguments_.Flag("add_qkv_bias", false);
    const bool has_norms = arguments_.Flag("qk_layernorm", false);
    AttentionSpec& a = attention_;
    a.kind = AttentionKind::kCausal;
    a.heads = Required("num_attention_heads", kHeads);
    if (arguments_.Flag("multi_latent_attention", false)) {
      a.kv_heads = a.heads;
      a.query_rank = arguments_.Int("q_lora_rank", kWidth, &notes_).value_or(0);
      a.kv_rank = IntOr("kv_lora_rank", kWidth, 32);
      a.rope_dim = IntOr("qk_pos_emb_head_dim", kHeads, 64);
      a.head_dim = IntOr("qk_head_dim", kHeads, 128) + a.rope_dim;
      a.value_dim = IntOr("v_head_dim", kHeads, 128);
      qkv_bias_ = false;  // Its projections have none.
      if (has_norms) {
        attention_vectors_ =
            NormOf(a.kv_rank) + (a.query_rank > 0 ? NormOf(a.query_rank) : 0);
      }
      return;
    }
    a.kv_heads = a.heads;
    // A checkpoint's arguments have a number of groups without the switch, too.
    const auto groups = arguments_.Int("num_query_groups", kHeads, &notes_);
    if (arguments_.Flag("group_query_attention", false)) {
      a.kv_heads = groups.value_or(1);
      if (!groups.has_value()) notes_.Assume("--num-query-groups is 1");
    }
    if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) {
      arguments_.Fail("num_query_groups",
                      absl::StrFormat("is %d; it must divide "
                                      "--num-attention-heads, which is %d",
                                      a.kv_heads, a.heads),
                      &notes_);
    }
    const auto channels = arguments_.Int("kv_channels", kHeads, &notes_);
    if (!channels.has_value() && a.heads > 0 && hidden_ % a.heads != 0) {
      arguments_.Fail("num_attention_heads",
                      absl::StrFormat("is %d; it must divide --hidden-size, "
                                      "which is %d, or --kv-channels be given",
                                      a.heads, hidden_),
                      &notes_);
    }
    a.head_dim = channels.value_or(a.heads > 0 ? hidden_ / a.heads : 0);
    a.scaled_rotary = arguments_.Text("position_embedding_type") == "yarn";
    if (has_norms) attention_vectors_ = 2 * NormOf(a.head_dim);
  }

  void ReadDropout() {
    const std::string text = arguments_.Text("hidden_dropout");
    // Megatron-LM's default is 0.1, but what describes a model leaves it out.
    double share = 0;
    if (text.empty()) {
      notes_.Assume("--hidden-dropout is 0");
    } else if (!absl::SimpleAtod(text, &share) || !(share >= 0 && share <= 1)) {
      arguments_.Fail("hidden_dropout",
                      absl::StrCat("is ", text, "; it must be in [0, 1]"),
                      &notes_);
    }
    dropout_ = share > 0;
  }

  // Returns which layers attend to a window only.
  std::vector<bool> Windows() {
    std::vector<bool> windows(layers_, false);
    const std::vector<int64_t> sizes =
        arguments_.Ints("window_size", {-1, kVocab.high}, &notes_);
    if (sizes.empty() || sizes[0] < 0) return windows;
    window_ = sizes[0] + 1;  // Those before a token, and the token.
    windows.assign(layers_, true);
    const std::string every = arguments_.Text("window_attn_skip_freq");
    int64_t period = 0;
    if (absl::SimpleAtoi(every, &period)) {
      for (int64_t i = 0; period > 0 && i < layers_; ++i) {
        windows[i] = (i + 1) % period != 0;
      }
      return windows;
    }
    return arguments_.Pattern("window_attn_skip_freq", layers_, &notes_);
  }

  void ReadFfn() {
    gated_ = arguments_.Flag("swiglu", false) ||
             arguments_.Flag("quick_geglu", false);
    const auto width = arguments_.Int("ffn_hidden_size", kWidth, &notes_);
    ffn_width_ =
        width.value_or(gated_ ? 4 * hidden_ * 2 / 3 / 64 * 64 : 4 * hidden_);
    if (!width.has_value() && hidden_ > 0) {
      notes_.Assume(absl::StrFormat("--ffn-hidden-size is %d", ffn_width_));
    }
    const int64_t experts =
        arguments_.Int("num_experts", kExperts, &notes_).value_or(0);
    if (experts == 0) return;
    FfnSpec& f = experts_;
    f.gated = gated_;
    f.experts = experts;
    f.experts_per_token = IntOr("moe_router_topk", kExperts, 2);
    if (f.experts_per_token < 1 || f.experts_per_token > experts) {
      arguments_.Fail("moe_router_topk",
                      absl::StrFormat("is %d; it must be in [1, %d], the "
                                      "number of experts",
                                      f.experts_per_token, experts),
                      &notes_);
    }
    f.expert_hidden = arguments_.Int("moe_ffn_hidden_size", kWidth, &notes_)
                          .value_or(ffn_width_);
    const int64_t shared = arguments_
                               .Int("moe_shared_expert_intermediate_size",
                                    {0, kWidth.high}, &notes_)
                               .value_or(0);
    if (shared > 0 && f.expert_hidden > 0) {
      if (shared % f.expert_hidden != 0) {
        arguments_.Fail(
            "moe_shared_expert_intermediate_size",
            absl::StrFormat("is %d; a model file can only hold a multiple of "
                            "the width of an expert, which is %d",
                            shared, f.expert_hidden),
            &notes_);
      }
      f.shared_experts = shared / f.expert_hidden;
      if (arguments_.Flag("moe_shared_expert_gate", false)) {
        expert_vectors_ += hidden_;
      }
    }
    f.clamped = !arguments_.Text("activation_func_clamp_value").empty();
    f.expert_biases = bias_;
    if (bias_) {
      expert_vectors_ +=
          experts + experts * ((gated_ ? 2 : 1) * f.expert_hidden + hidden_);
    }
  }

  LayerSpec Layer(bool is_sparse, bool is_window) const {
    AttentionSpec attention = attention_;
    if (is_window) attention.window = window_;
    const FfnSpec dense{.hidden = ffn_width_, .gated = gated_};
    LayerSpec layer = TransformerLayer(
        is_sparse
            ? (is_window ? "window_block" : "block")
            : (experts_.experts > 0 ? "dense_block"
                                    : (is_window ? "window_block" : "block")),
        hidden_, attention, is_sparse ? experts_ : dense,
        {.query_key_value = qkv_bias_, .attention_output = bias_, .ffn = bias_},
        2 * norm_ + attention_vectors_ + (is_sparse ? expert_vectors_ : 0));
    layer.dropout = dropout_;
    return layer;
  }

  LayerSpec Embedding() {
    const auto padded = arguments_.Int("padded_vocab_size", kVocab, &notes_);
    if (padded.has_value()) {
      vocab_ = *padded;
      arguments_.Int("vocab_size", kVocab, &notes_);
    } else {
      vocab_ = Required("vocab_size", kVocab);
      const int64_t multiple =
          arguments_.Int("make_vocab_size_divisible_by", {1, 1 << 20}, &notes_)
              .value_or(128) *
          arguments_.Int("tensor_model_parallel_size", {1, 1 << 14}, &notes_)
              .value_or(1);
      const int64_t whole = (vocab_ + multiple - 1) / multiple * multiple;
      if (whole != vocab_) {
        notes_.Assume(absl::StrFormat(
            "the vocabulary of %d tokens is padded to %d", vocab_, whole));
      }
      vocab_ = whole;
    }
    tied_ = !arguments_.Flag("untie_embeddings_and_output_weights", false);
    LayerSpec embedding = EmbeddingLayer(vocab_, hidden_);
    embedding.dropout = dropout_;
    const std::string positions = arguments_.Text("position_embedding_type");
    if (positions.empty() || positions == "learned_absolute") {
      if (positions.empty()) {
        notes_.Assume("--position-embedding-type is learned_absolute");
      }
      embedding.vector_parameters =
          hidden_ * Required("max_position_embeddings", kVocab);
    }
    // Sinks: a number a head.
    if (arguments_.Text("softmax_type") == "learnable") {
      attention_vectors_ += attention_.heads;
    }
    return embedding;
  }

  const MegatronArguments& arguments_;
  ConfigNotes& notes_;
  int64_t hidden_ = 0;
  int64_t layers_ = 0;
  int64_t vocab_ = 0;
  int64_t norm_ = 0;  // Parameters of a norm of the hidden width.
  int64_t ffn_width_ = 0;
  int64_t window_ = 0;
  bool is_layer_norm_ = false;
  bool bias_ = false;
  bool qkv_bias_ = false;
  bool dropout_ = false;
  bool gated_ = false;
  bool tied_ = false;
  AttentionSpec attention_{};
  FfnSpec experts_{};
  int64_t attention_vectors_ = 0;
  int64_t expert_vectors_ = 0;
};

}  // namespace

void ReadMegatron(const MegatronArguments& arguments, Draft* draft) {
  draft->Add(MegatronReader(arguments, &draft->notes).Read());
}

}  // namespace pipeloom::formats
