// Checks that all shipped files load, fit together, and have the published
// sizes.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_notes.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::IsEmpty;

std::vector<std::string> JsonFilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::string(kDataDir) + "/" + folder)) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ShippedWorkloadsTest, NamesAreTheFilesOfTheFolders) {
  EXPECT_EQ(ShippedJobNames(), JsonFilesIn("jobs"));
  EXPECT_EQ(ShippedModelNames(), JsonFilesIn("models"));
  EXPECT_EQ(ShippedClusterNames(), JsonFilesIn("clusters"));
  EXPECT_EQ(ShippedProfileNames(), JsonFilesIn("profiles"));
}

TEST(ShippedWorkloadsTest, EveryJobLoadsUnderItsOwnName) {
  for (const std::string& name : ShippedJobNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const JobSpec job, LoadJob(name, kDataDir, ReadFile));
    EXPECT_EQ(job.name, name);
    EXPECT_FALSE(job.source.empty());
    EXPECT_FALSE(job.model.source.empty());
    for (const ModuleSpec& module : job.model.modules) {
      EXPECT_FALSE(module.source.empty()) << module.name;
    }
    EXPECT_THAT(ValidateJobSpec(job), IsOk());
  }
}

TEST(ShippedWorkloadsTest, EveryModelAndClusterLoadsUnderItsOwnName) {
  for (const std::string& name : ShippedModelNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                         LoadModel(name, kDataDir, ReadFile));
    EXPECT_EQ(model.name, name);
  }
  for (const std::string& name : ShippedClusterNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ClusterSpec cluster,
                         LoadCluster(name, kDataDir, ReadFile));
    EXPECT_EQ(cluster.name, name);
    EXPECT_FALSE(cluster.source.empty());
    EXPECT_FALSE(cluster.device.source.empty());
  }
}

// A GPU takes as long in the cluster of a shipped job as in that on which its
// rates were judged by measured steps.
TEST(ShippedWorkloadsTest, DevicesOfOneNameAreEqual) {
  std::map<std::string, DeviceSpec> devices;
  int again = 0;
  for (const std::string& name : ShippedClusterNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(ClusterSpec cluster,
                         LoadCluster(name, kDataDir, ReadFile));
    cluster.device.source.clear();
    const auto [known, is_new] =
        devices.emplace(cluster.device.name, cluster.device);
    EXPECT_TRUE(known->second == cluster.device) << cluster.device.name;
    again += is_new ? 0 : 1;
  }
  EXPECT_GE(again, 4);
}

TEST(ShippedWorkloadsTest, NoModelHasNotes) {
  for (const std::string& name : ShippedModelNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                         LoadModel(name, kDataDir, ReadFile));
    EXPECT_THAT(ModelNotes(model), IsEmpty());
  }
  for (const std::string& name : ShippedJobNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const JobSpec job, LoadJob(name, kDataDir, ReadFile));
    EXPECT_THAT(ModelNotes(job.model), IsEmpty());
  }
}

// `derived` is what the dimensions alone give: blocks, embeddings, heads and
// the parts whose totals their authors published. `added` are parts of ours
// that the published sums leave out: the patch or latent embedding and the
// projector that DIP's table has no row for, DistTrain's two projectors,
// NextStep's autoencoder. `published` comes with a tolerance, since names
// round: "DIP VLM-S, 12B".
TEST(ShippedWorkloadsTest, ParametersAreThoseOfThePublishedModels) {
  struct Case {
    std::string name;
    int64_t derived;
    int64_t added;
    int64_t published;  // 0: the sum is not published.
    double tolerance;
  };
  const Case cases[] = {
      {"dip-vlm-s", 12'307'664'896, 8'393'728, 12'000'000'000, 0.03},
      {"dip-vlm-m", 37'041'280'000, 10'228'736, 37'000'000'000, 0.01},
      {"dip-vlm-l", 94'449'475'584, 53'944'320, 94'000'000'000, 0.01},
      {"dip-vlm-xl", 196'323'336'192, 79'110'144, 197'000'000'000, 0.01},
      {"dip-t2v-s", 12'962'762'752, 15'138'816, 13'000'000'000, 0.01},
      {"dip-t2v-l", 61'754'905'600, 32'243'712, 62'000'000'000, 0.01},
      {"dip-t2v-xl", 101'697'232'896, 51'118'080, 102'000'000'000, 0.01},
      {"disttrain-9b", 9'107'275'435, 9'437'184, 9'000'000'000, 0.02},
      {"disttrain-15b", 15'581'856'427, 11'796'480, 15'000'000'000, 0.05},
      {"disttrain-72b", 72'134'037'163, 18'874'368, 72'000'000'000, 0.01},
      {"qwen2.5-vl-7b", 8'292'166'656, 0, 8'292'166'656, 0},
      {"qwen2.5-vl-72b", 73'410'777'344, 0, 73'410'777'344, 0},
      // Published with the token-to-wave part, 0.449B.
      {"qwen2.5-omni-7b", 10'283'174'144, 0, 10'732'225'440, 0.05},
      {"internvl3-38b", 38'388'164'992, 0, 38'388'164'992, 0},
      {"step-video-t2v", 49'772'488'515, 0, 0, 0},
      {"step-audio-130b", 136'231'882'240, 22'020'096, 0, 0},
      {"stable-diffusion-2", 865'910'724, 0, 865'910'724, 0},
      // Text encoder, encoder half of the autoencoder, U-Net.
      {"stable-diffusion-2-online", 340'387'840 + 34'163'664 + 865'910'724, 0,
       0, 0},
      {"vit-g-14", 1'844'823'400, 0, 1'850'000'000, 0.003},
      {"llava-1.5-7b", 7'063'427'072, 0, 7'063'427'072, 0},
      {"llava-1.5-13b", 13'351'494'656, 0, 13'351'494'656, 0},
      {"step-3", 320'969'912'832, 0, 321'000'000'000, 0.001},
      {"nextstep-1", 14'953'814'080, 83'819'683, 15'000'000'000, 0.01},
      {"step1x-edit", 20'803'786'724, 0, 0, 0},
      {"llama3-8b", 8'030'261'248, 0, 8'030'261'248, 0},
      {"llama3-70b", 70'553'706'496, 0, 70'553'706'496, 0},
      {"llama3-405b", 405'853'388'800, 0, 405'853'388'800, 0},
      // LLaMA 13B's 13,015,864,320 without its head of 32,000 words.
      {"llama-13b-critic", 12'852'029'440, 0, 0, 0},
      {"llama-33b-actor", 32'528'943'616, 0, 32'528'943'616, 0},
      {"rlhf-33b-13b", 45'380'973'056, 0, 0, 0},
      {"deepseek-v2", 235'741'434'880, 0, 235'741'434'880, 0},
      {"deepseek-v3", 671'026'419'200, 0, 671'026'419'200, 0},
      // Made by scripts/make_models.py: the classes of transformers and
      // diffusers have as many.
      {"flux.1-dev", 11'901'408'320, 0, 11'901'408'320, 0},
      {"flux.1-schnell", 11'891'178'560, 0, 11'891'178'560, 0},
      {"gpt-oss-120b", 116'829'156'672, 0, 116'829'156'672, 0},
      {"gpt-oss-20b", 20'914'757'184, 0, 20'914'757'184, 0},
      {"hunyuan-video", 12'821'012'544, 0, 12'821'012'544, 0},
      {"internvl3.5-30b-a3b", 30'848'730'112, 0, 30'848'730'112, 0},
      {"internvl3.5-8b", 8'528'318'464, 0, 8'528'318'464, 0},
      {"llama3.2-1b", 1'235'814'400, 0, 1'235'814'400, 0},
      {"llava-onevision-7b", 8'029'890'080, 0, 8'029'890'080, 0},
      {"nemotron-3-nano-30b-a3b", 31'577'937'344, 0, 31'577'937'344, 0},
      {"nemotron-3-nano-4b", 3'973'556'832, 0, 3'973'556'832, 0},
      {"nemotron-3-super-120b-a12b", 120'668'687'360, 0, 120'668'687'360, 0},
      {"nemotron-h-56b", 56'324'350'464, 0, 56'324'350'464, 0},
      {"qwen3-14b", 14'768'307'200, 0, 14'768'307'200, 0},
      {"qwen3-235b-a22b", 235'093'634'560, 0, 235'093'634'560, 0},
      {"qwen3-30b-a3b", 30'532'122'624, 0, 30'532'122'624, 0},
      {"qwen3-8b", 8'190'735'360, 0, 8'190'735'360, 0},
      {"qwen3-next-80b-a3b", 79'674'391'296, 0, 79'674'391'296, 0},
      {"qwen3-omni-30b-a3b-thinker", 31'719'205'488, 0, 31'719'205'488, 0},
      {"qwen3-vl-30b-a3b", 31'070'754'032, 0, 31'070'754'032, 0},
      {"qwen3-vl-8b", 8'767'123'696, 0, 8'767'123'696, 0},
      {"qwen3.5-27b", 27'356'728'560, 0, 27'356'728'560, 0},
      {"qwen3.6-35b-a3b", 35'107'181'936, 0, 35'107'181'936, 0},
      {"wan2.1-t2v-14b", 14'288'491'584, 0, 14'288'491'584, 0},
      {"wan2.2-ti2v-5b", 4'999'787'712, 0, 4'999'787'712, 0},
  };
  std::vector<std::string> tested;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    tested.push_back(c.name);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                         LoadModel(c.name, kDataDir, ReadFile));
    const int64_t parameters = Parameters(model);
    EXPECT_EQ(parameters, c.derived + c.added);
    EXPECT_EQ(model.published_parameters, c.published);
    if (c.published > 0) {
      EXPECT_LE(std::abs(static_cast<double>(parameters - c.published)),
                c.tolerance * static_cast<double>(c.published));
    }
  }
  EXPECT_THAT(tested,
              ::testing::UnorderedElementsAreArray(ShippedModelNames()));
}

// Totals of single modules, published or counted in their own source.
TEST(ShippedWorkloadsTest, ModulesHaveTheirOwnPublishedSize) {
  struct Case {
    std::string model;
    std::string module;
    int64_t parameters;
  };
  const Case cases[] = {
      {"dip-vlm-s", "backbone", 8'030'261'248},
      {"dip-vlm-m", "backbone", 32'763'876'352},
      {"dip-vlm-l", "backbone", 72'706'203'648},
      {"dip-vlm-xl", "backbone", 174'580'064'256},
      {"qwen2.5-vl-7b", "vision_encoder", 676'550'144},
      {"qwen2.5-vl-72b", "vision_encoder", 704'573'696},
      {"qwen2.5-omni-7b", "audio_encoder", 639'647'232},
      {"qwen2.5-omni-7b", "talker", 1'351'360'256},
      {"step-video-t2v", "text_encoder", 19'579'600'896},
      {"step-video-t2v", "generator", 29'342'478'400},
      {"step-audio-130b", "backbone", 131'946'590'208},
      {"step-3", "vision_encoder", 4'285'292'032 + 390'082'560},
      {"step-3", "backbone", 316'294'538'240},
      {"nextstep-1", "flow_head", 157'228'096},
      {"step1x-edit", "connector", 536'621'825},
      {"step1x-edit", "generator", 12'427'800'385 - 536'621'825},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model + " " + c.module);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                         LoadModel(c.model, kDataDir, ReadFile));
    int64_t parameters = 0;
    for (const ModuleSpec& module : model.modules) {
      if (module.name == c.module) parameters = Parameters(module);
    }
    EXPECT_EQ(parameters, c.parameters);
  }
}

// Parameters that work on a token: by the models' names 3, 12 and 3 billion,
// and those of the loss head.
TEST(ShippedWorkloadsTest, HybridMixturesUseAsManyWeightsAsTheirNamesSay) {
  struct Case {
    std::string name;
    double active;
  };
  const Case cases[] = {{"nemotron-3-nano-30b-a3b", 3.2e9},
                        {"nemotron-3-super-120b-a12b", 12.1e9},
                        {"qwen3-next-80b-a3b", 3.5e9}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                         LoadModel(c.name, kDataDir, ReadFile));
    double active = 0;
    for (const LayerSpec& layer : model.modules[ModuleId(0)].layers) {
      active += static_cast<double>(ActiveMatrixParameters(layer));
    }
    EXPECT_NEAR(active, c.active, 0.05 * c.active);
  }
}

// Step-3 README: 38B active. The input table is looked up, not used.
TEST(ShippedWorkloadsTest, Step3UsesAnEighthOfItsWeightsForAToken) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                       LoadModel("step-3", kDataDir, ReadFile));
  int64_t active = 0;
  for (const LayerSpec& layer : model.modules[ModuleId(1)].layers) {
    active += ActiveMatrixParameters(layer) + layer.vector_parameters;
  }
  EXPECT_EQ(active, 37'917'982'720);
}

TEST(ShippedWorkloadsTest, DipVlmSIsThePapersSetUp) {
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       LoadJob("dip-vlm-s", kDataDir, ReadFile));
  EXPECT_EQ(job.parallel, (ParallelLayout{.tp = 4, .pp = 4}));
  EXPECT_EQ(job.cluster.num_gpus(), 64);
  EXPECT_EQ(job.cluster.device.name, "h800-sxm");
  EXPECT_EQ(job.training.microbatches, 16);
  EXPECT_EQ(job.training.microbatch_tokens, 8192);
  EXPECT_EQ(job.training.microbatch_images, 48);
  const ModuleSpec& encoder = job.model.modules[ModuleId(0)];
  ASSERT_EQ(encoder.token_rules.size(), 1u);
  EXPECT_EQ(encoder.token_rules[0].side, 728);
  EXPECT_EQ(encoder.token_rules[0].patch, 14);
  EXPECT_EQ(encoder.token_rules[0].merge, 4);
  EXPECT_EQ(encoder.layers.size(), 63 + 2);
  EXPECT_TRUE(encoder.layers[LayerId(64)].on_output_tokens);
}

TEST(ShippedWorkloadsTest, RealBatchesHoldWhatTheirTableSays) {
  struct Case {
    std::string file;
    int32_t samples;
  };
  const Case cases[] = {{"image_text", 3000}, {"interleaved", 1957},
                        {"speech", 3000},     {"text", 3000},
                        {"video", 1117},      {"mixed", 4000}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.file);
    const std::string path =
        std::string(kDataDir) + "/batches/" + c.file + ".jsonl";
    ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(path));
    EXPECT_LT(text.size(), 1'000'000u);
    std::vector<std::string> warnings;
    ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                         ParseBatch(text, path, &warnings));
    EXPECT_EQ(batch.samples.size(), c.samples);
    EXPECT_THAT(warnings, ::testing::IsEmpty());
  }
}

}  // namespace
}  // namespace pipeloom::formats
