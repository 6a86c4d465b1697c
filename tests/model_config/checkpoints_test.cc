// Configurations of checkpoints that transformers has no class for, or reads
// under other names.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model_config/fixtures.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The sizes of moonshotai/Kimi-VL-A3B-Instruct.
json KimiVl() {
  return {{"model_type", "kimi_vl"},
          {"vision_config",
           {{"model_type", "moonvit"},
            {"patch_size", 14},
            {"num_attention_heads", 16},
            {"num_hidden_layers", 27},
            {"hidden_size", 1152},
            {"intermediate_size", 4304},
            {"merge_kernel_size", {2, 2}},
            {"init_pos_emb_height", 64},
            {"init_pos_emb_width", 64}}},
          {"text_config",
           {{"model_type", "deepseek_v3"},
            {"hidden_size", 2048},
            {"intermediate_size", 11264},
            {"moe_intermediate_size", 1408},
            {"num_hidden_layers", 27},
            {"num_attention_heads", 16},
            {"n_shared_experts", 2},
            {"n_routed_experts", 64},
            {"num_experts_per_tok", 6},
            {"first_k_dense_replace", 1},
            {"kv_lora_rank", 512},
            {"q_lora_rank", nullptr},
            {"qk_nope_head_dim", 128},
            {"qk_rope_head_dim", 64},
            {"v_head_dim", 128},
            {"vocab_size", 163840}}}};
}

TEST(CheckpointsTest, KimiVlHasTheParametersThatAddUpByHand) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(KimiVl()));
  EXPECT_THAT(read.missing, IsEmpty());
  const int64_t v = 1152;
  const int64_t vision =
      3 * 14 * 14 * v + v + 64 * 64 * v +  // Patches.
      27 * (4 * v * v + 4 * v + 2 * v * 4304 + 4304 + v + 4 * v) + 2 * v;
  const int64_t projector = 2 * v + 4 * v * 4 * v + 4 * v + 4 * v * 2048 + 2048;
  EXPECT_EQ(Parameters(read.model.modules[ModuleId(0)]), vision + projector);
  const int64_t h = 2048;
  const int64_t attention = h * 16 * 192 + h * (512 + 64) + 512 +
                            512 * 16 * (128 + 128) + 16 * 128 * h;
  const int64_t language = 2 * 163840 * h + h + 27 * (attention + 2 * h) +
                           3 * h * 11264 +
                           26 * (h * 64 + (64 + 2) * 3 * h * 1408);
  EXPECT_EQ(Parameters(read.model.modules[ModuleId(1)]), language);
  // Equal to torchtitan's class of the model: trainer_counts.py.
  EXPECT_EQ(Parameters(read.model), 16'407'654'384);
}

json Moonshot(const std::string& type, int64_t vocab, int64_t experts,
              int64_t heads, int64_t first_dense) {
  return {{"model_type", type},
          {"hidden_size", 7168},
          {"intermediate_size", 18432},
          {"moe_intermediate_size", 2048},
          {"num_hidden_layers", 61},
          {"num_attention_heads", heads},
          {"num_key_value_heads", heads},
          {"n_shared_experts", 1},
          {"n_routed_experts", experts},
          {"num_experts_per_tok", 8},
          {"kv_lora_rank", 512},
          {"q_lora_rank", 1536},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"vocab_size", vocab},
          {"first_k_dense_replace", first_dense}};
}

// The sizes of moonshotai/Kimi-K2-Instruct, published as 1 trillion parameters,
// and 32 billion active ones.
TEST(CheckpointsTest, KimiK2HasTheLayersOfDeepSeekV3) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel read,
                       Read(Moonshot("kimi_k2", 163840, 384, 64, 1)));
  EXPECT_THAT(read.missing, IsEmpty());
  const int64_t h = 7168;
  const int64_t attention = h * 1536 + 1536 + 1536 * 64 * 192 + h * (512 + 64) +
                            512 + 512 * 64 * 256 + 64 * 128 * h;
  EXPECT_EQ(Parameters(read.model),
            2 * 163840 * h + h + 61 * (attention + 2 * h) + 3 * h * 18432 +
                60 * (h * 384 + (384 + 1) * 3 * h * 2048));
  EXPECT_NEAR(static_cast<double>(Parameters(read.model)), 1.026e12, 0.001e12);
}

// Counted by layers that have experts: 3 of 61 have none, and of the rest those
// with an odd number have none where every second has them.
TEST(CheckpointsTest, DeepSeekHasExpertsInEveryNthLayer) {
  json config = Moonshot("deepseek_v3", 129280, 256, 128, 3);
  const auto with_experts = [&] {
    const auto read = Read(config);
    std::vector<int> layers;
    if (!read.ok()) return layers;
    int i = -1;  // The first is the embedding.
    for (const LayerSpec& layer : read->model.modules[ModuleId(0)].layers) {
      if (layer.ffn.experts > 0) layers.push_back(i);
      ++i;
    }
    return layers;
  };
  EXPECT_EQ(with_experts().size(), 58u);
  config["moe_layer_freq"] = 1;
  EXPECT_EQ(with_experts().size(), 58u);
  config["moe_layer_freq"] = 2;
  const std::vector<int> every_second = with_experts();
  ASSERT_EQ(every_second.size(), 29u);
  EXPECT_EQ(every_second[0], 4);
  EXPECT_EQ(every_second[1], 6);
}

// The sizes of zai-org/GLM-4.5 and GLM-4.5-Air, published as 355 and 106
// billion parameters.
json Glm(int64_t hidden, int64_t dense_width, int64_t layers, int64_t experts,
         int64_t expert_width, int64_t first_dense, bool norms) {
  return {{"model_type", "glm4_moe"},
          {"hidden_size", hidden},
          {"intermediate_size", dense_width},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 96},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"vocab_size", 151552},
          {"n_routed_experts", experts},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 8},
          {"moe_intermediate_size", expert_width},
          {"first_k_dense_replace", first_dense},
          {"num_nextn_predict_layers", 1},
          {"attention_bias", true},
          {"use_qk_norm", norms},
          {"tie_word_embeddings", false}};
}

int64_t GlmByHand(int64_t h, int64_t dense_width, int64_t layers,
                  int64_t experts, int64_t expert_width, int64_t first_dense,
                  bool norms) {
  const int64_t inner = 96 * 128;
  const int64_t key_value = 2 * 8 * 128;
  const int64_t attention =
      2 * h * inner + h * key_value + inner + key_value + (norms ? 2 * 128 : 0);
  return 2 * 151552 * h + h + layers * (attention + 2 * h) +
         first_dense * 3 * h * dense_width +
         (layers - first_dense) *
             (h * experts + (experts + 1) * 3 * h * expert_width);
}

TEST(CheckpointsTest, Glm45HasTheParametersThatAddUpByHand) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel air,
                       Read(Glm(4096, 10944, 46, 128, 1408, 1, false)));
  EXPECT_THAT(air.missing, IsEmpty());
  EXPECT_THAT(air.assumed, Contains(HasSubstr("multi-token-prediction layer")));
  EXPECT_EQ(Parameters(air.model),
            GlmByHand(4096, 10944, 46, 128, 1408, 1, false));
  EXPECT_NEAR(static_cast<double>(Parameters(air.model)), 106e9, 1e9);
  ASSERT_OK_AND_ASSIGN(const ConfigModel whole,
                       Read(Glm(5120, 12288, 92, 160, 1536, 3, true)));
  EXPECT_THAT(whole.missing, IsEmpty());
  EXPECT_EQ(Parameters(whole.model),
            GlmByHand(5120, 12288, 92, 160, 1536, 3, true));
  EXPECT_NEAR(static_cast<double>(Parameters(whole.model)), 355e9, 3.55e9);
}

TEST(CheckpointsTest, KimiVlLimitsTheTokensOfAnImageAsItsProcessorDoes) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      ParseModelConfig({.config_name = "config.json",
                        .config = KimiVl().dump(),
                        .processor_name = "preprocessor_config.json",
                        .processor = R"({"in_token_limit": 16384})"},
                       "model"));
  const TokenRule& rule = read.model.modules[ModuleId(0)].token_rules[0];
  EXPECT_EQ(rule.max_tokens, 4096);
  EXPECT_EQ(rule.patch * rule.merge, 28);
}

// The sizes of microsoft/Phi-4-multimodal-instruct.
json Phi4() {
  return {{"model_type", "phi4mm"},
          {"hidden_size", 3072},
          {"intermediate_size", 8192},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 24},
          {"num_key_value_heads", 8},
          {"vocab_size", 200064},
          {"tie_word_embeddings", true},
          {"sliding_window", 262144},
          {"img_processor", nullptr},
          {"audio_processor",
           {{"name", "cascades"},
            {"config",
             {{"attention_dim", 1024},
              {"attention_heads", 16},
              {"depthwise_multiplier", 1},
              {"depthwise_seperable_out_channel", 1024},
              {"ext_pw_out_channel", 1024},
              {"input_size", 80},
              {"kernel_size", 3},
              {"linear_units", 1536},
              {"nemo_conv_settings", {{"conv_channels", 1024}}},
              {"num_blocks", 24},
              {"relative_attention_bias_args",
               {{"t5_bias_max_distance", 500}, {"type", "t5"}}},
              {"time_reduction", 8}}}}},
          {"embd_layer",
           {{"embedding_cls", "image_audio"},
            {"image_embd_layer", {{"crop_size", 448}}},
            {"audio_embd_layer", {{"downsample_rate", 1}}}}},
          {"vision_lora", {{"r", 256}}},
          {"speech_lora", {{"r", 320}}}};
}

TEST(CheckpointsTest, Phi4HasThePublishedParametersWithItsAdapters) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(Phi4()));
  EXPECT_THAT(read.missing, IsEmpty());
  EXPECT_THAT(read.assumed, Contains(HasSubstr("vision_lora, an adapter of "
                                               "rank 256 with 369098752 "
                                               "parameters")));
  EXPECT_THAT(read.assumed, Contains(HasSubstr("461373440 parameters")));
  // The checkpoint counts the mean and deviation of 80 mel rows, too.
  EXPECT_EQ(Parameters(read.model) + 369'098'752 + 461'373'440 + 2 * 80,
            5'574'460'384);
}

TEST(CheckpointsTest, Phi4DiffersFromItsClassInTheSizesOfTheCheckpointOnly) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel checkpoint, Read(Phi4()));
  json config = ReadFixture("configs.json")["phi-4-multimodal"];
  config["num_attention_heads"] = 24;
  config["audio_config"]["bias_max_distance"] = 500;
  config["sliding_window"] = 262144;
  ASSERT_OK_AND_ASSIGN(const ConfigModel real, Read(config));
  for (const ModuleId m : real.model.modules.ids()) {
    EXPECT_EQ(checkpoint.model.modules[m].layers, real.model.modules[m].layers);
    EXPECT_EQ(checkpoint.model.modules[m].token_rules,
              real.model.modules[m].token_rules);
  }
}

}  // namespace
}  // namespace pipeloom::formats
