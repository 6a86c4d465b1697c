// Models from the arguments of Megatron-LM and the names of torchtitan. The
// sizes are also compared with the real classes: trainer_counts.py.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/model_config/megatron_arguments.h"
#include "formats/model_config/torchtitan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model_config/fixtures.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::nlohmann::json;
using ::pipeloom::testing::FailsWith;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<ConfigModel> Megatron(const std::string& text) {
  return ParseModelConfig({.config_name = "args", .config = text}, "model");
}

const ModuleSpec& Backbone(const ConfigModel& read) {
  return read.model.modules[ModuleId(0)];
}

constexpr char kLlama[] = R"(--num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
    --num-query-groups 8 --swiglu --normalization RMSNorm
    --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights --vocab-size 128256)";

constexpr char kDeepSeek[] = R"(--num-layers 61 --hidden-size 7168
    --ffn-hidden-size 18432 --num-attention-heads 128 --swiglu
    --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512
    --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
    --qk-layernorm --normalization RMSNorm --disable-bias-linear
    --position-embedding-type rope --untie-embeddings-and-output-weights
    --vocab-size 129280 --num-experts 256 --moe-router-topk 8
    --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
    --moe-layer-freq ([0]*3+[1]*58))";

constexpr char kGptOss[] = R"(--num-layers 24 --hidden-size 2880
    --ffn-hidden-size 2880 --num-attention-heads 64 --kv-channels 64
    --group-query-attention --num-query-groups 8 --swiglu
    --normalization RMSNorm --position-embedding-type yarn
    --untie-embeddings-and-output-weights --padded-vocab-size 201088
    --num-experts 32 --moe-router-topk 4 --window-size 127,0
    --activation-func-clamp-value 7.0
    --window-attn-skip-freq 2 --softmax-type learnable)";

// Flags and the configuration that transformers has of the same model.
TEST(MegatronModelTest, HasTheLayersOfTheConfigurationOfTheSameModel) {
  const std::pair<const char*, const char*> same[] = {
      {kLlama, "llama3-8b"},
      {kDeepSeek, "deepseek-v3"},
      {kGptOss, "gpt-oss-20b"},
      {R"(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
          --num-attention-heads 32 --group-query-attention
          --num-query-groups 8 --swiglu --normalization RMSNorm
          --disable-bias-linear --use-rotary-position-embeddings
          --untie-embeddings-and-output-weights --vocab-size 32000
          --num-experts 8)",
       "mixtral-8x7b"},
      {R"(--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944
          --num-attention-heads 28 --group-query-attention
          --num-query-groups 4 --swiglu --normalization RMSNorm
          --disable-bias-linear --add-qkv-bias --position-embedding-type rope
          --untie-embeddings-and-output-weights --vocab-size 152064)",
       "qwen2.5-7b"},
      {R"(--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144
          --num-attention-heads 32 --kv-channels 128
          --group-query-attention --num-query-groups 4 --qk-layernorm --swiglu
          --normalization RMSNorm --disable-bias-linear
          --position-embedding-type rope
          --untie-embeddings-and-output-weights --vocab-size 151936
          --make-vocab-size-divisible-by 64 --num-experts 128
          --moe-router-topk 8 --moe-ffn-hidden-size 768)",
       "qwen3-30b-a3b"}};
  const json configs = ReadFixture("configs.json");
  for (const auto& [flags, name] : same) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel megatron, Megatron(flags));
    ASSERT_OK_AND_ASSIGN(const ConfigModel real, Read(configs[name]));
    EXPECT_THAT(megatron.missing, IsEmpty());
    EXPECT_THAT(megatron.ignored, IsEmpty());
    ASSERT_EQ(Backbone(megatron).layers.size(), Backbone(real).layers.size());
    for (const LayerId l : Backbone(real).layers.ids()) {
      EXPECT_EQ(Backbone(megatron).layers[l], Backbone(real).layers[l])
          << l.value() << Backbone(real).layers[l].name;
    }
  }
}

TEST(MegatronModelTest, HasTheParametersOfGpt3ByItsDefaults) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      Megatron("--num-layers 96 --hidden-size 12288 --num-attention-heads 96 "
               "--vocab-size 50257 --max-position-embeddings 2048"));
  const int64_t h = 12288;
  // Weights and biases of a layer, its two norms; vocabulary padded to 50304.
  EXPECT_EQ(Parameters(read.model),
            96 * (12 * h * h + 9 * h + 4 * h) + (50304 + 2048) * h + 2 * h);
  EXPECT_THAT(read.assumed,
              Contains("the vocabulary of 50257 tokens is padded to 50304"));
  EXPECT_THAT(read.assumed, Contains("--normalization is LayerNorm"));
}

TEST(MegatronModelTest, BiasesAreOnUnlessSwitchedOffAndDropoutIfGiven) {
  const std::string gpt =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 "
      "--vocab-size 128 --max-position-embeddings 8";
  ASSERT_OK_AND_ASSIGN(const ConfigModel on,
                       Megatron(absl::StrCat(gpt, " --hidden-dropout 0.1")));
  EXPECT_TRUE(Backbone(on).layers[LayerId(0)].dropout);
  EXPECT_TRUE(Backbone(on).layers[LayerId(1)].dropout);
  EXPECT_TRUE(Backbone(on).layers[LayerId(1)].biases);
  ASSERT_OK_AND_ASSIGN(const ConfigModel off,
                       Megatron(absl::StrCat(gpt, " --disable-bias-linear")));
  EXPECT_THAT(off.assumed, Contains("--hidden-dropout is 0"));
  for (const LayerSpec& layer : Backbone(off).layers) {
    EXPECT_FALSE(layer.dropout);
    EXPECT_FALSE(layer.biases);
  }
  EXPECT_THAT(Megatron(absl::StrCat(gpt, " --hidden-dropout 2")),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("is 2; it must be in [0, 1]")));
}

TEST(MegatronModelTest, AllFormsOfTheArgumentsAreTheSameModel) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel flags, Megatron(kDeepSeek));
  const std::string script = absl::StrCat(
      "#!/bin/bash\nHEADS=128 # of attention\nexport LAYERS='61'\n", "ARGS=(\n",
      absl::StrReplaceAll(kDeepSeek,
                          {{"--num-layers 61",
                            "--num-layers "
                            "${LAYERS} \\\n"},
                           {"heads 128", "heads $HEADS"},
                           {"([0]*3+[1]*58)", "\"([0]*3+[1]*58)\""}}),
      ")\nMORE_ARGS=( --lr 1e-4 --bf16 )\n",
      "torchrun --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]} \"$@\"\n");
  json checkpoint = {{"num_layers", 61},
                     {"hidden_size", 7168},
                     {"ffn_hidden_size", 18432},
                     {"num_attention_heads", 128},
                     {"group_query_attention", false},
                     {"num_query_groups", 1},
                     {"kv_channels", 56},
                     {"swiglu", true},
                     {"multi_latent_attention", true},
                     {"q_lora_rank", 1536},
                     {"kv_lora_rank", 512},
                     {"qk_head_dim", 128},
                     {"qk_pos_emb_head_dim", 64},
                     {"v_head_dim", 128},
                     {"qk_layernorm", true},
                     {"normalization", "RMSNorm"},
                     {"add_bias_linear", false},
                     {"add_qkv_bias", false},
                     {"position_embedding_type", "rope"},
                     {"untie_embeddings_and_output_weights", true},
                     {"padded_vocab_size", 129280},
                     {"vocab_size", 129000},
                     {"num_experts", 256},
                     {"moe_router_topk", 8},
                     {"moe_ffn_hidden_size", 2048},
                     {"moe_shared_expert_intermediate_size", 2048},
                     {"retro_add_retriever", false},
                     {"hybrid_attention_ratio", 0.0},
                     {"window_size", nullptr},
                     {"mtp_num_layers", nullptr}};
  for (int i = 0; i < 61; ++i) {
    checkpoint["moe_layer_freq"].push_back(i < 3 ? 0 : 1);
  }
  std::string yaml = "args:\n";
  std::string log = "------- arguments -------\n";
  for (const auto& [key, value] : checkpoint.items()) {
    std::string text = value.is_string() ? value.get<std::string>()
                       : value.is_null() ? "None"
                       : value.is_boolean()
                           ? (value.get<bool>() ? "True" : "False")
                           : value.dump();
    absl::StrAppend(&log, "  ", key, " ................ ", text, "\n");
    absl::StrAppend(&yaml, "  ", key, ": ", value.dump(), "\n");
  }
  const std::string block =
      absl::StrReplaceAll(yaml, {{"[", "\n  - "}, {",", "\n  - "}, {"]", ""}});
  for (const std::string& text :
       {script, checkpoint.dump(), json{{"args", checkpoint}}.dump(), log, yaml,
        block}) {
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read, Megatron(text));
    EXPECT_EQ(Backbone(read), Backbone(flags));
    EXPECT_THAT(read.missing, IsEmpty());
  }
}

TEST(MegatronModelTest, ArgumentsThatSayNothingAboutTheModelAreIgnored) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      Megatron(absl::StrCat(kLlama, " --lr 3e-4 --micro-batch-size=1 --bf16")));
  EXPECT_THAT(read.ignored,
              ElementsAre("--bf16", "--lr", "--micro-batch-size"));
}

TEST(MegatronModelTest, MissingArgumentsAreNamed) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel read,
                       Megatron("--num-layers 2 --swiglu"));
  EXPECT_THAT(read.missing,
              ElementsAre("--hidden-size", "--num-attention-heads",
                          "--vocab-size", "--max-position-embeddings"));
}

TEST(MegatronModelTest, LayersOfAnotherModelAreMissing) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      Megatron(absl::StrCat(kLlama, " --hybrid-override-pattern M-M*")));
  EXPECT_THAT(read.missing, Contains(HasSubstr("hybrid_override_pattern")));
}

TEST(MegatronModelTest, PredictedTokensAddALayerAndTheHeadOnceMore) {
  ASSERT_OK_AND_ASSIGN(const ConfigModel one, Megatron(kDeepSeek));
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      Megatron(absl::StrCat(kDeepSeek, " --mtp-num-layers 1")));
  // A projection with two norms, a layer of experts, the norm of the head.
  const int64_t h = 7168;
  const LayerSpec& block = Backbone(one).layers[LayerId(61)];
  EXPECT_EQ(Parameters(read.model) - Parameters(one.model),
            2 * h * h + 2 * h + Parameters(block) + h);
}

TEST(MegatronModelTest, AnotherSectionsFieldsOfOneNameAreNoError) {
  const std::string yaml =
      "model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n"
      "  name: a\n  vocab_size: 128\n  max_position_embeddings: 8\n"
      "data:\n  name: b\n";
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Megatron(yaml));
  EXPECT_THAT(read.missing, IsEmpty());
  EXPECT_THAT(Megatron(yaml + "  num_layers: 3\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("args:10: argument \"num_layers\" is given a "
                                  "second time, as 3; in line 2 it is 2")));
}

TEST(MegatronModelTest, ErrorsNameTheLineTheArgumentAndTheRemedy) {
  const std::pair<const char*, const char*> bad[] = {
      {"--num-layers many",
       "args:1: argument \"--num-layers\" is many; it "
       "must be an integer in [1, 4096]"},
      {"--num-layers 2\n--hidden-size $H",
       "args:2: argument \"--hidden-size\" is $H; it must be a number in place "
       "of a variable"},
      {"--num-layers 2 --num-layers 3", "is given a second time, as 3"},
      {"num_layers: \xd8\x01\n", "is ??; it must be an integer"},
      {"--num-layers 2 --hidden-size 64 --num-attention-heads 6",
       "is 6; it must divide --hidden-size, which is 64"},
      {"--num-layers 2 --hidden-size 64 --num-attention-heads 8 "
       "--group-query-attention --num-query-groups 3",
       "is 3; it must divide --num-attention-heads, which is 8"},
      {"--num-layers 2 --hidden-size 64 --num-attention-heads 8 "
       "--num-experts 4 --moe-layer-freq ([0]*2+[1]*3)",
       "is ([0]*2+[1]*3); it must be a number, or a list of 2 0s and 1s"},
      {"--num-layers 2 --hidden-size 64 --num-attention-heads 8 "
       "--num-experts 4 --moe-router-topk 8",
       "is 8; it must be in [1, 4]"},
      {"--num-layers 2 --normalization BatchNorm", "LayerNorm or RMSNorm"},
      {"num_layers: 2.5\n", "args:1: argument \"num_layers\" is 2.5"},
      {"hello\n", "has neither --num-layers nor --hidden-size"}};
  for (const auto& [text, says] : bad) {
    EXPECT_THAT(Megatron(text),
                FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(says)))
        << text;
  }
}

TEST(TorchtitanModelTest, EveryNameIsAWholeModel) {
  for (const std::string& name : TorchtitanNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read,
                         ReadTorchtitanModel(name, "model"));
    EXPECT_THAT(read.missing, IsEmpty());
    EXPECT_THAT(read.model.source, HasSubstr(name));
  }
}

TEST(TorchtitanModelTest, HasTheLayersOfTheConfigurationOfTheSameModel) {
  const std::pair<const char*, const char*> same[] = {
      {"llama3/8B", "llama3-8b"},
      {"llama3/70B", "llama3-70b"},
      {"llama3/405B", "llama3.1-405b"},
      {"llama3/1B", "llama3.2-1b"},
      {"qwen3/8B", "qwen3-8b"},
      {"qwen3/14B", "qwen3-14b"},
      {"qwen3/0.6B", "qwen3-0.6b"},
      {"qwen3/30B-A3B", "qwen3-30b-a3b"},
      {"qwen3/235B-A22B", "qwen3-235b-a22b"},
      {"deepseek_v3/16B", "deepseek-v2-lite"},
      {"deepseek_v3/671B", "deepseek-v3"},
      {"gpt_oss/20b", "gpt-oss-20b"},
      {"gpt_oss/120b", "gpt-oss-120b"}};
  const json configs = ReadFixture("configs.json");
  for (const auto& [name, config] : same) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read,
                         ReadTorchtitanModel(name, "model"));
    ASSERT_OK_AND_ASSIGN(const ConfigModel real, Read(configs[config]));
    EXPECT_EQ(Backbone(read).layers, Backbone(real).layers);
  }
  // The language models inside of Llama 4's configurations.
  for (const auto& [name, config] :
       {std::pair("llama4/17bx16e", "llama4-scout"),
        std::pair("llama4/17bx128e", "llama4-maverick")}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read,
                         ReadTorchtitanModel(name, "model"));
    ASSERT_OK_AND_ASSIGN(const ConfigModel real, Read(configs[config]));
    EXPECT_EQ(Backbone(read).layers, real.model.modules[ModuleId(1)].layers);
  }
}

TEST(TorchtitanModelTest, AnUnknownNameListsWhatIsKnown) {
  EXPECT_THAT(ReadTorchtitanModel("llama3/7B", "m"),
              FailsWith(absl::StatusCode::kNotFound,
                        HasSubstr("the flavors of llama3 are debugmodel, 1B, "
                                  "3B, 8B, 70B, 405B")));
  EXPECT_THAT(ReadTorchtitanModel("gpt2", "m"),
              FailsWith(absl::StatusCode::kNotFound,
                        HasSubstr("known are llama3, llama4, qwen3, "
                                  "deepseek_v3, gpt_oss, kimi_k2_7")));
}

}  // namespace
}  // namespace pipeloom::formats
