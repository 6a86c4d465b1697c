#include "formats/model_config/model_config.h"

#include <cstdint>
#include <string>
#include <vector>

#include "formats/job/model_writer.h"
#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/job/model_notes.h"
#include "partition/batching/token_count.h"
#include "tests/formats/data_dir.h"
#include "tests/model_config/fixtures.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::nlohmann::json;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json Llama() { return ReadFixture("configs.json")["llama3-8b"]; }

TEST(ModelConfigTest, ParametersEqualThoseOfTheRealClasses) {
  const json golden = ReadFixture("golden.json")["models"];
  int compared = 0;
  const json configs = ReadFixture("configs.json");
  for (const auto& [name, config] : configs.items()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
    EXPECT_THAT(read.missing, IsEmpty());
    ASSERT_TRUE(golden.contains(name));
    EXPECT_EQ(Parameters(read.model), golden[name]["parameters"]);
    ++compared;
  }
  EXPECT_EQ(compared, static_cast<int>(golden.size()));
}

// A reward model, a classifier of tokens, and a class without a head.
TEST(ModelConfigTest, HeadsAreThoseOfTheClassThatArchitecturesNames) {
  json config = Llama();
  const int64_t rest = 8030261248 - 128256 * 4096;
  const auto read = [&config](const char* name) {
    config["architectures"] = {name};
    return Read(config);
  };
  ASSERT_OK_AND_ASSIGN(ConfigModel model,
                       read("LlamaForSequenceClassification"));
  EXPECT_EQ(Parameters(model.model), rest + 2 * 4096);
  EXPECT_THAT(model.assumed, Contains(HasSubstr("the head is 2 wide")));
  config["num_labels"] = 1;
  ASSERT_OK_AND_ASSIGN(model, read("LlamaForSequenceClassification"));
  EXPECT_EQ(Parameters(model.model), rest + 4096);
  ASSERT_OK_AND_ASSIGN(model, read("LlamaForTokenClassification"));
  EXPECT_EQ(Parameters(model.model), rest + 4096 + 1);
  ASSERT_OK_AND_ASSIGN(model, read("LlamaModel"));
  EXPECT_EQ(Parameters(model.model), 8030261248);
  EXPECT_THAT(model.assumed, Contains(HasSubstr("LlamaModel has the head of")));
  ASSERT_OK_AND_ASSIGN(model, read("LlamaForCausalLM"));
  EXPECT_THAT(model.assumed, IsEmpty());
}

TEST(ModelConfigTest, EveryModelIsReadAgainFromItsFile) {
  const json configs = ReadFixture("configs.json");
  for (const auto& [name, config] : configs.items()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
    ASSERT_OK_AND_ASSIGN(const ModelSpec again,
                         ParseModel(PrintModel(read.model), "model.json"));
    EXPECT_EQ(again, read.model);
  }
}

TEST(ModelConfigTest, ShippedModelsAreReadAgainAsTheyArePrinted) {
  for (const std::string& name : ShippedModelNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                         LoadModel(name, kDataDir, ReadFile));
    ASSERT_OK_AND_ASSIGN(const ModelSpec again,
                         ParseModel(PrintModel(model), "model.json"));
    EXPECT_EQ(again, model);
  }
}

// The files that were written by hand have the same layers.
TEST(ModelConfigTest, ShippedModelsHaveTheLayersOfTheirConfigurations) {
  const json configs = ReadFixture("configs.json");
  for (const std::string name :
       {"llama3-8b", "qwen2.5-vl-7b", "qwen2.5-vl-72b", "internvl3-38b"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ModelSpec shipped,
                         LoadModel(name, kDataDir, ReadFile));
    ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(configs[name]));
    ASSERT_EQ(read.model.modules.size(), shipped.modules.size());
    for (const ModuleId m : shipped.modules.ids()) {
      const ModuleSpec& theirs = shipped.modules[m];
      const ModuleSpec& ours = read.model.modules[m];
      EXPECT_EQ(ours.role, theirs.role);
      EXPECT_EQ(ours.layers, theirs.layers) << theirs.name;
      if (!theirs.token_rules.empty()) {
        EXPECT_THAT(ours.token_rules, Contains(theirs.token_rules[0]));
      }
    }
    EXPECT_EQ(read.model.edges, shipped.edges);
  }
}

// Qwen2's queries, keys and values have biases, its other products have none;
// InternViT of 6B has none for queries, keys and values.
TEST(ModelConfigTest, BiasesAreThoseOfAllProductsOfALayer) {
  const json configs = ReadFixture("configs.json");
  const auto biases = [&](const std::string& name, size_t module) {
    const absl::StatusOr<ConfigModel> read = Read(configs[name]);
    bool all = true;
    bool any = false;
    if (!read.ok()) return std::string("unread");
    const ModuleSpec& spec =
        read->model.modules[ModuleId(static_cast<int32_t>(module))];
    for (const LayerSpec& layer : spec.layers) {
      if (layer.kind != LayerKind::kTransformer) continue;
      all &= layer.biases;
      any |= layer.biases;
    }
    return std::string(!any ? "none" : all ? "all" : "some");
  };
  EXPECT_EQ(biases("qwen2.5-vl-7b", 0), "all");
  EXPECT_EQ(biases("qwen2.5-vl-7b", 1), "none");
  EXPECT_EQ(biases("internvl3-38b", 0), "none");
  EXPECT_EQ(biases("internvl3.5-8b", 0), "all");
  EXPECT_EQ(biases("flux.1-dev", 0), "all");
  EXPECT_EQ(biases("gpt-oss-20b", 0), "all");
  EXPECT_EQ(biases("llama3-8b", 0), "none");
}

TEST(ModelConfigTest, AMissingFieldIsNamedAndItsModuleIsEmpty) {
  json config = ReadFixture("configs.json")["qwen2.5-vl-7b"];
  config.erase("hidden_size");
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  EXPECT_THAT(read.missing, ElementsAre("hidden_size"));
  ASSERT_EQ(read.model.modules.size(), 2);
  EXPECT_EQ(Parameters(read.model.modules[ModuleId(0)]), 676550144);
  EXPECT_TRUE(read.model.modules[ModuleId(1)].layers.empty());
  EXPECT_THAT(ParseModel(PrintModel(read.model), "model.json"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("layers is empty")))
      << "the planner does not take it";
}

TEST(ModelConfigTest, AnUnknownArchitectureIsToldWithWhatIsKnown) {
  json config = Llama();
  config["model_type"] = "llama9";
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  EXPECT_THAT(read.model.source, HasSubstr("llama9"));
  EXPECT_THAT(read.model.missing,
              ElementsAre("a reader of architecture \"llama9\"",
                          HasSubstr("language model \"llama9\"")));
  EXPECT_EQ(read.architecture, "llama9");
  EXPECT_THAT(read.missing,
              ElementsAre(AllOf(HasSubstr("architecture \"llama9\""),
                                HasSubstr("qwen2_5_vl")),
                          HasSubstr("language model \"llama9\"")));
  EXPECT_EQ(Parameters(read.model), 8030261248);

  ASSERT_OK_AND_ASSIGN(const ConfigModel nothing,
                       Read({{"model_type", "mystery"}}));
  EXPECT_EQ(nothing.missing.size(), 1u);
  EXPECT_TRUE(nothing.model.modules.empty());
}

TEST(ModelConfigTest, AnUnknownArchitectureNamesTheModulesThatItLeavesOut) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      Read({{"model_type", "omni9"},
            {"text_config", Llama()},
            {"vision_config", {{"depth", 32}, {"hidden_size", 1280}}},
            {"rope_scaling", {{"type", "yarn"}}},
            {"speech_config", {{"d_model", 1280}}}}));
  EXPECT_THAT(read.missing,
              ElementsAre(AllOf(HasSubstr("architecture \"omni9\""),
                                HasSubstr("pipeloom.capture")),
                          // In the order of nlohmann's objects.
                          "the module of speech_config",
                          "the module of vision_config"));
  EXPECT_EQ(Parameters(read.model), 8030261248);
}

TEST(ModelConfigTest, AConfigurationWithoutAnArchitectureIsAnError) {
  json config = Llama();
  config.erase("model_type");
  for (const json& bad : {config, json::object()}) {
    const absl::Status status = Read(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("config.json: it has no field \"model_type\""),
                      HasSubstr("\"architectures\"")));
  }
}

TEST(ModelConfigTest, EverySecondLayerOfGemma2HasAWindow) {
  const json configs = ReadFixture("configs.json");
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(configs["gemma2-2b"]));
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : read.model.modules[ModuleId(0)].layers) {
    if (layer.kind == LayerKind::kTransformer) {
      windows.push_back(layer.attention.window);
    }
  }
  ASSERT_EQ(windows.size(), 26u);
  for (size_t i = 0; i < windows.size(); ++i) {
    EXPECT_EQ(windows[i], i % 2 == 0 ? 4096 : 0) << i;
  }
}

// Sounds of Qwen2-Audio: 100 frames a second, halved by a convolution, and once
// more behind the layers, which attend to 30 seconds.
TEST(ModelConfigTest, Qwen2AudioHasTheTokensOfItsClass) {
  const json configs = ReadFixture("configs.json");
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(configs["qwen2-audio-7b"]));
  const ModuleSpec& audio = read.model.modules[ModuleId(0)];
  ASSERT_EQ(audio.token_rules.size(), 1u);
  EXPECT_EQ(audio.token_rules[0].modality, Modality::kAudio);
  EXPECT_EQ(audio.token_rules[0].tokens_per_second, 50);
  EXPECT_EQ(audio.token_rules[0].output_tokens_per_second, 25);
  EXPECT_EQ(audio.layers[LayerId(1)].attention.window, 1500);
  EXPECT_TRUE(audio.layers[LayerId(33)].on_output_tokens);
  EXPECT_EQ(read.model.edges.size(), 1u);
}

TEST(ModelConfigTest, AModelFileKeepsWhatIsMissing) {
  json config = Llama();
  config["model_type"] = "llama9";
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  ASSERT_OK_AND_ASSIGN(const ModelSpec again,
                       ParseModel(PrintModel(read.model), "model.json"));
  EXPECT_EQ(again, read.model);
  EXPECT_THAT(ModelNotes(again),
              Contains(AllOf(HasSubstr("model is incomplete"),
                             HasSubstr("language model \"llama9\""))));
}

TEST(ModelConfigTest, ModelsOfConfigurationsHaveNoNotes) {
  const json configs = ReadFixture("configs.json");
  for (const auto& [name, config] : configs.items()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
    EXPECT_THAT(ModelNotes(read.model), IsEmpty());
  }
}

TEST(ModelConfigTest, AnUnknownVisionEncoderOfLlavaIsMissing) {
  json config = ReadFixture("configs.json")["llava-1.5-7b"];
  config["vision_config"]["model_type"] = "pixtral";
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  EXPECT_THAT(read.missing,
              ElementsAre(AllOf(HasSubstr("vision encoder \"pixtral\""),
                                HasSubstr("clip_vision_model"))));
}

// LLaVA with several layers of its encoder concatenates them: the projector's
// first product is as many times as wide.
TEST(ModelConfigTest, LlavaWidensItsProjectorByTheLayersThatItReads) {
  json config = ReadFixture("configs.json")["llava-1.5-7b"];
  ASSERT_OK_AND_ASSIGN(const ConfigModel one, Read(config));
  config["vision_feature_layer"] = {-2, -5, 3};
  ASSERT_OK_AND_ASSIGN(const ConfigModel three, Read(config));
  EXPECT_EQ(Parameters(three.model) - Parameters(one.model), 2 * 1024 * 4096);
}

TEST(ModelConfigTest, ValuesLeftToTheClassAreListed) {
  json config = ReadFixture("configs.json")["qwen2.5-vl-7b"];
  config["vision_config"].erase("window_size");
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  EXPECT_THAT(read.assumed, Contains("vision_config.window_size = 112"));
  EXPECT_THAT(read.model.source, HasSubstr("vision_config.window_size = 112"))
      << "the file says so too";
}

// Returns the windows of the transformer layers of the last module.
std::vector<int64_t> WindowsOf(const ConfigModel& read) {
  std::vector<int64_t> windows;
  const ModuleId last(static_cast<int32_t>(read.model.modules.size()) - 1);
  for (const LayerSpec& layer : read.model.modules[last].layers) {
    if (layer.kind == LayerKind::kTransformer) {
      windows.push_back(layer.attention.window);
    }
  }
  return windows;
}

TEST(ModelConfigTest, SlidingWindowsAreThoseOfEachLayer) {
  const json configs = ReadFixture("configs.json");
  ASSERT_OK_AND_ASSIGN(const ConfigModel oss, Read(configs["gpt-oss-20b"]));
  const std::vector<int64_t> of_oss = WindowsOf(oss);
  ASSERT_EQ(of_oss.size(), 24);
  for (size_t i = 0; i < of_oss.size(); ++i) {
    EXPECT_EQ(of_oss[i], i % 2 == 0 ? 128 : 0) << i;
  }
  ASSERT_OK_AND_ASSIGN(const ConfigModel gemma, Read(configs["gemma3-4b"]));
  const std::vector<int64_t> of_gemma = WindowsOf(gemma);
  for (size_t i = 0; i < of_gemma.size(); ++i) {
    EXPECT_EQ(of_gemma[i], i % 6 == 5 ? 0 : 1024) << i;
  }
  ASSERT_OK_AND_ASSIGN(const ConfigModel mistral, Read(configs["mistral-7b"]));
  EXPECT_THAT(WindowsOf(mistral), Each(4096));
  ASSERT_OK_AND_ASSIGN(const ConfigModel qwen, Read(configs["qwen2.5-7b"]));
  EXPECT_THAT(WindowsOf(qwen), Each(0)) << "use_sliding_window is false";
  ASSERT_OK_AND_ASSIGN(const ConfigModel llama, Read(Llama()));
  EXPECT_THAT(WindowsOf(llama), Each(0));
}

TEST(ModelConfigTest, LayerTypesNameTheLayersWithWindows) {
  json config = ReadFixture("configs.json")["gpt-oss-20b"];
  config["num_hidden_layers"] = 3;
  config["layer_types"] = {"full_attention", "sliding_attention",
                           "full_attention"};
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  EXPECT_THAT(WindowsOf(read), ElementsAre(0, 128, 0));
  config["num_hidden_layers"] = 4;
  EXPECT_THAT(Read(config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("must have one for each of the 4 layers")));
}

TEST(ModelConfigTest, UnknownLayerTypesAreRefusedWithThoseOfTheClass) {
  const json configs = ReadFixture("configs.json");
  struct Case {
    std::string model;
    std::string type;
    std::string says;
  };
  const Case cases[] = {
      {"gpt-oss-20b", "sliding_atention",
       "must be full_attention or sliding_attention"},
      {"llama3-8b", "linear_attention",
       "must be full_attention or sliding_attention"},
      {"qwen3-next-80b-a3b", "full_atention",
       "must be full_attention or linear_attention"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model);
    json config = configs[c.model];
    config["layer_types"] =
        std::vector<std::string>(config["num_hidden_layers"], "full_attention");
    EXPECT_THAT(Read(config), IsOk());
    config["layer_types"][1] = c.type;
    EXPECT_THAT(Read(config),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          AllOf(HasSubstr("field \"layer_types\" has"),
                                HasSubstr(c.type), HasSubstr(c.says))));
  }
}

TEST(ModelConfigTest, YarnScalesTheRotationUnlessItIsDividedAgain) {
  const json configs = ReadFixture("configs.json");
  const auto scaled = [](const json& config) {
    const auto read = Read(config);
    return read.ok() && read->model.modules[ModuleId(0)]
                            .layers[LayerId(1)]
                            .attention.scaled_rotary;
  };
  // Its class has YaRN by default.
  json oss = configs["gpt-oss-20b"];
  EXPECT_TRUE(scaled(oss));
  oss["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_FALSE(scaled(oss));
  json llama = Llama();
  EXPECT_FALSE(scaled(llama));
  llama["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_TRUE(scaled(llama));
  llama["rope_parameters"]["mscale_all_dim"] = 1.0;
  EXPECT_FALSE(scaled(llama));
}

TEST(ModelConfigTest, LimitsOfImagesAreThoseOfTheProcessor) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigModel read,
      ParseModelConfig(
          {.config_name = "config.json",
           .config = ReadFixture("configs.json")["qwen2.5-vl-7b"].dump(),
           .processor_name = "preprocessor_config.json",
           .processor = R"({"min_pixels": 200704, "max_pixels": 1003520})"},
          "model"));
  const TokenRule& images = read.model.modules[ModuleId(0)].token_rules[0];
  EXPECT_EQ(images.min_tokens, 256);
  EXPECT_EQ(images.max_tokens, 1280);
}

TEST(ModelConfigTest, ErrorsNameFileLineAndField) {
  struct Case {
    std::string name;
    std::string field;
    json value;
    std::string expected;
  };
  const Case cases[] = {
      {"text", "hidden_size", "wide", "field \"hidden_size\" is \"wide\""},
      {"negative", "num_hidden_layers", -1, "must be an integer in [1, 4096]"},
      {"too large", "vocab_size", int64_t{1} << 40, "\"vocab_size\" is"},
      {"fraction", "intermediate_size", 0.5, "must be an integer"},
      {"heads do not divide", "num_attention_heads", 33,
       "must divide the width, which is 4096"},
      {"groups do not divide", "num_key_value_heads", 7,
       "it must divide num_attention_heads, which is 32"},
      {"no flag", "tie_word_embeddings", "yes", "must be true or false"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    json config = Llama();
    config[c.field] = c.value;
    EXPECT_THAT(Read(config),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          AllOf(HasSubstr("config.json:1: "),
                                HasSubstr(c.field), HasSubstr(c.expected))));
  }
  EXPECT_THAT(Read(json::array()),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("a configuration is an object")));
}

TEST(ModelConfigTest, AModelLargerThanAnyIsRefused) {
  json config = ReadFixture("configs.json")["mixtral-8x7b"];
  config["num_local_experts"] = 16384;
  config["intermediate_size"] = 1 << 20;
  config["num_hidden_layers"] = 4000;
  EXPECT_THAT(Read(config), FailsWith(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("parameters; it must have")));
}

// The language model attends to the encoder's tokens; they are not in its
// sequence.
TEST(ModelConfigTest, WhispersDecoderAttendsToRecordings) {
  const json config = ReadFixture("configs.json")["whisper-large-v3-turbo"];
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  ASSERT_EQ(read.model.edges.size(), 1);
  EXPECT_TRUE(read.model.edges[0].as_context);
  const ModuleSpec& decoder = read.model.modules[ModuleId(1)];
  EXPECT_EQ(decoder.layers.size(), 6);
  EXPECT_EQ(decoder.layers[LayerId(1)].cross_attention.context_width, 1280);
  const auto work = partition::SampleWork(
      read.model, {.text_tokens = 40, .audio_seconds = {6.0}});
  EXPECT_EQ(work[ModuleId(0)].tokens, 300);
  EXPECT_EQ(work[ModuleId(1)].tokens, 40);
  EXPECT_EQ(work[ModuleId(1)].context_pairs, 40 * 300);
}

// State spaces or attention in each layer, with a feed-forward part or experts.
TEST(ModelConfigTest, GraniteHybridLayersHaveAMixerAndAFeedForwardPart) {
  json config = ReadFixture("configs.json")["granite-4.0-h-tiny"];
  ASSERT_OK_AND_ASSIGN(const ConfigModel read, Read(config));
  const ModuleSpec& module = read.model.modules[ModuleId(0)];
  ASSERT_EQ(module.layers.size(), 42);
  int attention = 0;
  for (const LayerSpec& layer : module.layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    EXPECT_EQ(layer.ffn.experts, 64);
    EXPECT_EQ(layer.ffn.shared_experts, 2);
    EXPECT_NE(layer.attention.heads > 0, layer.state_space.heads > 0);
    attention += layer.attention.heads > 0 ? 1 : 0;
  }
  EXPECT_EQ(attention, 4);
  config.erase("layer_types");
  ASSERT_OK_AND_ASSIGN(const ConfigModel states, Read(config));
  EXPECT_EQ(
      states.model.modules[ModuleId(0)].layers[LayerId(6)].attention.heads, 0);
  config["layer_types"] = {"mamba", "attention"};
  EXPECT_THAT(Read(config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("has 2 items; it must have one for each of "
                                  "the 40 layers")));
  config["layer_types"] = json::array();
  config["mamba_d_head"] = 32;
  EXPECT_THAT(Read(config), FailsWith(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("mamba_n_heads times it")));
}

}  // namespace
}  // namespace pipeloom::formats
