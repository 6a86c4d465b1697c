#include "formats/model_config/torchtitan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace pipeloom::formats {
namespace {

struct Flavor {
  absl::string_view name;
  absl::string_view type;    // The architecture with these layers.
  absl::string_view fields;  // Fields of a configuration.
};

// Sizes of torchtitan's model registry (BSD-3-Clause) at commit b5bcd76c of
// August 2026; llama4 at 00f555e1, before torchtitan dropped it.
constexpr Flavor kFlavors[] = {
    {"llama3/debugmodel", "llama",
     R"("hidden_size": 256, "num_hidden_layers": 6, )"
     R"("num_attention_heads": 16, "num_key_value_heads": 16, )"
     R"("intermediate_size": 768, "vocab_size": 2048, )"
     R"("tie_word_embeddings": false)"},
    {"llama3/1B", "llama",
     R"("hidden_size": 2048, "num_hidden_layers": 16, )"
     R"("num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("intermediate_size": 8192, "vocab_size": 128256, )"
     R"("tie_word_embeddings": true)"},
    {"llama3/3B", "llama",
     R"("hidden_size": 3072, "num_hidden_layers": 28, )"
     R"("num_attention_heads": 24, "num_key_value_heads": 8, )"
     R"("intermediate_size": 8192, "vocab_size": 128256, )"
     R"("tie_word_embeddings": true)"},
    {"llama3/8B", "llama",
     R"("hidden_size": 4096, "num_hidden_layers": 32, )"
     R"("num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("intermediate_size": 14336, "vocab_size": 128256, )"
     R"("tie_word_embeddings": false)"},
    {"llama3/70B", "llama",
     R"("hidden_size": 8192, "num_hidden_layers": 80, )"
     R"("num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("intermediate_size": 28672, "vocab_size": 128256, )"
     R"("tie_word_embeddings": false)"},
    {"llama3/405B", "llama",
     R"("hidden_size": 16384, "num_hidden_layers": 126, )"
     R"("num_attention_heads": 128, "num_key_value_heads": 8, )"
     R"("intermediate_size": 53248, "vocab_size": 128256, )"
     R"("tie_word_embeddings": false)"},
    {"llama4/17bx16e", "llama4_text",
     R"("hidden_size": 5120, "num_hidden_layers": 48, )"
     R"("num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "intermediate_size": 8192, )"
     R"("intermediate_size_mlp": 16384, "num_local_experts": 16, )"
     R"("num_experts_per_tok": 1, "interleave_moe_layer_step": 1, )"
     R"("vocab_size": 202048, "attention_chunk_size": 8192)"},
    {"llama4/17bx128e", "llama4_text",
     R"("hidden_size": 5120, "num_hidden_layers": 48, )"
     R"("num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "intermediate_size": 8192, )"
     R"("intermediate_size_mlp": 16384, "num_local_experts": 128, )"
     R"("num_experts_per_tok": 1, "interleave_moe_layer_step": 2, )"
     R"("vocab_size": 202048, "attention_chunk_size": 8192)"},
    {"qwen3/debugmodel", "qwen3",
     R"("hidden_size": 256, "num_hidden_layers": 8, )"
     R"("num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 2048, )"
     R"("tie_word_embeddings": true, "intermediate_size": 3072)"},
    {"qwen3/0.6B", "qwen3",
     R"("hidden_size": 1024, "num_hidden_layers": 28, )"
     R"("num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": true, "intermediate_size": 3072)"},
    {"qwen3/1.7B", "qwen3",
     R"("hidden_size": 2048, "num_hidden_layers": 28, )"
     R"("num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": true, "intermediate_size": 6144)"},
    {"qwen3/4B", "qwen3",
     R"("hidden_size": 2560, "num_hidden_layers": 36, )"
     R"("num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": true, "intermediate_size": 9728)"},
    {"qwen3/8B", "qwen3",
     R"("hidden_size": 4096, "num_hidden_layers": 36, )"
     R"("num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": false, "intermediate_size": 12288)"},
    {"qwen3/14B", "qwen3",
     R"("hidden_size": 5120, "num_hidden_layers": 40, )"
     R"("num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": false, "intermediate_size": 17408)"},
    {"qwen3/32B", "qwen3",
     R"("hidden_size": 5120, "num_hidden_layers": 64, )"
     R"("num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": false, "intermediate_size": 25600)"},
    {"qwen3/debugmodel_moe", "qwen3_moe",
     R"("hidden_size": 256, "num_hidden_layers": 8, )"
     R"("num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("head_dim": 128, "vocab_size": 2048, )"
     R"("tie_word_embeddings": false, "num_experts": 64, )"
     R"("num_experts_per_tok": 8, "moe_intermediate_size": 768)"},
    {"qwen3/30B-A3B", "qwen3_moe",
     R"("hidden_size": 2048, "num_hidden_layers": 48, )"
     R"("num_attention_heads": 32, "num_key_value_heads": 4, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": false, "num_experts": 128, )"
     R"("num_experts_per_tok": 8, "moe_intermediate_size": 768)"},
    {"qwen3/235B-A22B", "qwen3_moe",
     R"("hidden_size": 4096, "num_hidden_layers": 94, )"
     R"("num_attention_heads": 64, "num_key_value_heads": 4, )"
     R"("head_dim": 128, "vocab_size": 151936, )"
     R"("tie_word_embeddings": false, "num_experts": 128, )"
     R"("num_experts_per_tok": 8, "moe_intermediate_size": 1536)"},
    {"deepseek_v3/debugmodel", "deepseek_v3",
     R"("hidden_size": 256, "num_hidden_layers": 6, )"
     R"("num_attention_heads": 16, "intermediate_size": 1024, )"
     R"("first_k_dense_replace": 1, "moe_intermediate_size": 256, )"
     R"("n_routed_experts": 8, "n_shared_experts": 2, )"
     R"("num_experts_per_tok": 3, "q_lora_rank": null, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 2048)"},
    {"deepseek_v3/16B", "deepseek_v3",
     R"("hidden_size": 2048, "num_hidden_layers": 27, )"
     R"("num_attention_heads": 16, "intermediate_size": 10944, )"
     R"("first_k_dense_replace": 1, "moe_intermediate_size": 1408, )"
     R"("n_routed_experts": 64, "n_shared_experts": 2, )"
     R"("num_experts_per_tok": 6, "q_lora_rank": null, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, )"
     R"("vocab_size": 102400)"},
    {"deepseek_v3/236B", "deepseek_v3",
     R"("hidden_size": 5120, "num_hidden_layers": 60, )"
     R"("num_attention_heads": 128, "intermediate_size": 12288, )"
     R"("first_k_dense_replace": 1, "moe_intermediate_size": 1536, )"
     R"("n_routed_experts": 160, "n_shared_experts": 2, )"
     R"("num_experts_per_tok": 6, "q_lora_rank": 1536, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, )"
     R"("vocab_size": 102400)"},
    {"deepseek_v3/671B", "deepseek_v3",
     R"("hidden_size": 7168, "num_hidden_layers": 61, )"
     R"("num_attention_heads": 128, "intermediate_size": 18432, )"
     R"("first_k_dense_replace": 3, "moe_intermediate_size": 2048, )"
     R"("n_routed_experts": 256, "n_shared_experts": 1, )"
     R"("num_experts_per_tok": 8, "q_lora_rank": 1536, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, )"
     R"("vocab_size": 129280)"},
    {"gpt_oss/20b", "gpt_oss",
     R"("hidden_size": 2880, "num_hidden_layers": 24, )"
     R"("num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("head_dim": 64, "intermediate_size": 2880, )"
     R"("num_local_experts": 32, "num_experts_per_tok": 4, )"
     R"("sliding_window": 128, "vocab_size": 201088)"},
    {"gpt_oss/120b", "gpt_oss",
     R"("hidden_size": 2880, "num_hidden_layers": 36, )"
     R"("num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("head_dim": 64, "intermediate_size": 2880, )"
     R"("num_local_experts": 128, "num_experts_per_tok": 4, )"
     R"("sliding_window": 128, "vocab_size": 201088)"},
    {"kimi_k2_7/moonlight-16B-A3B", "deepseek_v3",
     R"("hidden_size": 2048, "num_hidden_layers": 27, )"
     R"("num_attention_heads": 16, "intermediate_size": 11264, )"
     R"("first_k_dense_replace": 1, "moe_intermediate_size": 1408, )"
     R"("n_routed_experts": 64, "n_shared_experts": 2, )"
     R"("num_experts_per_tok": 6, "q_lora_rank": null, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, )"
     R"("vocab_size": 163840)"},
    {"kimi_k2_7/Kimi-VL-A3B", "kimi_vl",
     R"("text_config": {"model_type": "deepseek_v3", )"
     R"("hidden_size": 2048, "num_hidden_layers": 27, )"
     R"("num_attention_heads": 16, "intermediate_size": 11264, )"
     R"("first_k_dense_replace": 1, "moe_intermediate_size": 1408, )"
     R"("n_routed_experts": 64, "n_shared_experts": 2, )"
     R"("num_experts_per_tok": 6, "q_lora_rank": null, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, )"
     R"("vocab_size": 163840}, "vision_config": {"hidden_size": 1152, )"
     R"("num_hidden_layers": 27, "num_attention_heads": 16, )"
     R"("intermediate_size": 4304, "patch_size": 14, )"
     R"("merge_kernel_size": [2, 2], "init_pos_emb_height": 64, )"
     R"("init_pos_emb_width": 64})"},
    {"kimi_k2_7/Kimi-K2.5", "kimi_vl",
     R"("text_config": {"model_type": "deepseek_v3", )"
     R"("hidden_size": 7168, "num_hidden_layers": 61, )"
     R"("num_attention_heads": 64, "intermediate_size": 18432, )"
     R"("first_k_dense_replace": 1, "moe_intermediate_size": 2048, )"
     R"("n_routed_experts": 384, "n_shared_experts": 1, )"
     R"("num_experts_per_tok": 8, "q_lora_rank": 1536, )"
     R"("kv_lora_rank": 512, "qk_nope_head_dim": 128, )"
     R"("qk_rope_head_dim": 64, "v_head_dim": 128, )"
     R"("vocab_size": 163840}, "vision_config": {"hidden_size": 1152, )"
     R"("num_hidden_layers": 27, "num_attention_heads": 16, )"
     R"("intermediate_size": 4304, "patch_size": 14, )"
     R"("merge_kernel_size": [2, 2], "init_pos_emb_height": 64, )"
     R"("init_pos_emb_width": 64})"},
};

}  // namespace

std::vector<std::string> TorchtitanNames() {
  std::vector<std::string> names;
  for (const Flavor& flavor : kFlavors) names.emplace_back(flavor.name);
  return names;
}

absl::StatusOr<std::string> TorchtitanConfig(absl::string_view name) {
  const std::string model(name.substr(0, name.find('/')));
  std::vector<std::string> models;
  std::vector<std::string> of_model;
  for (const Flavor& flavor : kFlavors) {
    if (flavor.name == name) {
      return absl::StrCat("{\"model_type\": \"", flavor.type, "\", ",
                          flavor.fields, "}");
    }
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(flavor.name, '/');
    if (models.empty() || models.back() != parts.first) {
      models.push_back(parts.first);
    }
    if (parts.first == model) of_model.push_back(parts.second);
  }
  if (of_model.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "torchtitan's model \"%s\" is not known; known are %s, each with a "
        "flavor, such as torchtitan:llama3/8B",
        model, absl::StrJoin(models, ", ")));
  }
  return absl::NotFoundError(absl::StrFormat(
      "torchtitan's \"%s\" is not known; the flavors of %s are %s", name, model,
      absl::StrJoin(of_model, ", ")));
}

}  // namespace pipeloom::formats
