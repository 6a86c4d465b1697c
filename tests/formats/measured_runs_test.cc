#include "formats/profile/measured_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "formats/job/spec_loader.h"
#include "formats/profile/run_setup.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

constexpr char kHeader[] =
    "framework,run,cluster,shape,layout,setup,microbatch,global_batch,"
    "sequence,step_ms,peak_gib,split\n";
constexpr char kRow[] =
    "f,a run,h100-sxm,layers=4 hidden=512 heads=8 ffn=2048 vocab=1000,"
    "tp=2 pp=2 dp=3,attention=flash1 recompute=full,2,24,128,12.5,3,held-out\n";

TEST(MeasuredRunsTest, ReadsEveryColumn) {
  ASSERT_OK_AND_ASSIGN(const auto runs,
                       ParseMeasuredRuns(std::string(kHeader) + kRow, "t.csv"));
  ASSERT_EQ(runs.size(), 1u);
  const MeasuredRun& run = runs[0];
  EXPECT_EQ(run.name, "a run");
  EXPECT_EQ(run.cluster, "h100-sxm");
  // Embedding, four blocks, loss head.
  EXPECT_EQ(run.model.modules[ModuleId(0)].layers.size(), 6);
  EXPECT_EQ(run.parallel.tp, 2);
  EXPECT_EQ(run.parallel.dp, 3);
  EXPECT_EQ(run.setup.attention, AttentionKernel::kFlash1);
  EXPECT_TRUE(run.recompute);
  EXPECT_EQ(run.microbatches(), 4);
  EXPECT_EQ(run.step_time, Microseconds(12500));
  EXPECT_EQ(run.peak_allocated, Bytes(int64_t{3} << 30));
  EXPECT_EQ(run.split, RunSplit::kHeldOut);
}

TEST(MeasuredRunsTest, TheFrameworksNameChoosesDefaultsOfExperts) {
  std::string row = kRow;
  row.replace(0, 1, "megatron-bridge");
  row.replace(row.find("attention=flash1"), 16,
              "precision=mxfp8 graphs=iteration imbalance=1.5");
  row.replace(row.find("ffn=2048"), 8,
              "experts=8 top_k=2 expert_ffn=64 window=32 window_every=2 "
              "predicted_tokens=1");
  ASSERT_OK_AND_ASSIGN(
      const auto runs,
      ParseMeasuredRuns(std::string(kHeader) + row + kRow, "t"));
  const MeasuredRun& run = runs[0];
  EXPECT_EQ(run.setup.framework, Framework::kMegatronBridge);
  EXPECT_EQ(run.parallel.expert_tp, 1);
  EXPECT_TRUE(run.setup.fp8_products);
  EXPECT_EQ(run.setup.fp8_recipe, Fp8Recipe::kBlocks);
  EXPECT_EQ(run.setup.dispatch, ExpertDispatch::kEachGpu);
  EXPECT_TRUE(run.setup.fp8_gathers);
  EXPECT_FALSE(runs[1].setup.fp8_gathers);
  EXPECT_EQ(run.setup.graphs, CudaGraphs::kIteration);
  EXPECT_TRUE(run.setup.overlap_dispatch);
  EXPECT_EQ(run.setup.expert_imbalance, 1.5);
  // Embedding, four blocks, projection, block and head of the second token,
  // loss head.
  const auto& layers = run.model.modules[ModuleId(0)].layers;
  ASSERT_EQ(layers.size(), 9);
  EXPECT_EQ(layers[LayerId(1)].attention.kind, AttentionKind::kCausal);
  EXPECT_EQ(layers[LayerId(1)].attention.window, 32);
  EXPECT_EQ(layers[LayerId(2)].attention.window, 0);
  EXPECT_EQ(layers[LayerId(5)].kind, LayerKind::kLinears);
  EXPECT_EQ(layers[LayerId(7)].kind, LayerKind::kLossHead);
  EXPECT_TRUE(layers[LayerId(7)].tied);
  // Any other framework sends a row to each expert.
  EXPECT_EQ(runs[1].setup.dispatch, ExpertDispatch::kEachExpert);
  EXPECT_EQ(runs[1].parallel.expert_tp, 0);
  EXPECT_EQ(runs[1].setup.host_per_kernel, kZero);
}

// The product of the table with one-hot rows, ahead of the embedding.
TEST(MeasuredRunsTest, TokensMayBeLookedUpByAProduct) {
  std::string row = kRow;
  row.replace(row.find("vocab=1000"), 10, "vocab=1000 one_hot=1");
  ASSERT_OK_AND_ASSIGN(
      const auto runs,
      ParseMeasuredRuns(std::string(kHeader) + row + kRow, "t.csv"));
  const auto& layers = runs[0].model.modules[ModuleId(0)].layers;
  const auto& usual = runs[1].model.modules[ModuleId(0)].layers;
  ASSERT_EQ(layers.size(), usual.size() + 1);
  EXPECT_EQ(layers[LayerId(0)].kind, LayerKind::kFixedWork);
  EXPECT_EQ(layers[LayerId(0)].fixed_flops_per_token, 2.0 * 1000 * 512);
  EXPECT_EQ(layers[LayerId(0)].fixed_activation_bytes_per_token, 2000);
  EXPECT_EQ(layers[LayerId(1)].kind, LayerKind::kEmbedding);
}

TEST(MeasuredRunsTest, AFrameworkSaysHowLongItsHostTakes) {
  const auto host_of = [](const char* framework) {
    return ToMicroseconds(SetupOfFramework(framework).host_per_kernel);
  };
  for (const char* name : {"megatron", "megatron-simumax", "megatron-swift",
                           "megatron-bridge", "nemo", "mlperf"}) {
    EXPECT_EQ(host_of(name), 30) << name;
  }
  EXPECT_EQ(host_of("loongforge"), 70);
  EXPECT_EQ(host_of("llm-foundry"), 0);
}

// Its arguments have these defaults.
TEST(MeasuredRunsTest, SwiftHasMegatronsOwnLossAndOverlapsNoUpdates) {
  const TrainingSetup swift = SetupOfFramework("megatron-swift");
  EXPECT_TRUE(swift.fp32_loss);
  EXPECT_EQ(swift.overlap, CommunicationOverlap::kNone);
  EXPECT_FALSE(SetupOfFramework("megatron-simumax").fp32_loss);
}

TEST(MeasuredRunsTest, ARunMayNameAModelAndTheImagesOfItsSamples) {
  std::string row = kRow;
  row.replace(row.find("layers=4 hidden=512 heads=8 ffn=2048 vocab=1000"), 47,
              "model=qwen2.5-vl-7b scaled_rotary=1 images=3 image=448x224");
  row.replace(row.find("tp=2 pp=2"), 9, "pp=2 vp=2 stages=6+8+6+8");
  row.replace(row.find("recompute=full"), 14,
              "recompute=norms+moe_activations");
  ASSERT_OK_AND_ASSIGN(const auto runs,
                       ParseMeasuredRuns(std::string(kHeader) + row, "t"));
  const MeasuredRun& run = runs[0];
  EXPECT_EQ(run.model_name, "qwen2.5-vl-7b");
  EXPECT_TRUE(run.scaled_rotary);
  EXPECT_EQ(run.stage_layers, (std::vector<int32_t>{6, 8, 6, 8}));
  EXPECT_FALSE(run.recompute);
  EXPECT_EQ(
      run.recompute_groups,
      (OperatorGroups{OperatorGroup::kNorms, OperatorGroup::kMoeActivations}));
  // A microbatch of two samples is full with their six images.
  ClusterSpec cluster;
  cluster.gpus_per_node = 8;
  EXPECT_EQ(JobOf(run, cluster).training.microbatch_images, 6);
  const BatchMetadata batch = BatchOf(run);
  ASSERT_EQ(batch.samples.size(), 24);
  EXPECT_EQ(batch.samples[SampleId(23)].text_tokens, 128);
  EXPECT_EQ(batch.samples[SampleId(23)].images,
            (std::vector<ImageSize>(3, {.width = 448, .height = 224})));
}

TEST(MeasuredRunsTest, ARunMayPredictMoreTokensAndRecomputeExperts) {
  std::string row = kRow;
  row.replace(row.find("layers=4 hidden=512 heads=8 ffn=2048 vocab=1000"), 47,
              "model=nemotron-3-super-120b-a12b predicted_tokens=2");
  row.replace(row.find("recompute=full"), 14, "recompute=norms+experts");
  ASSERT_OK_AND_ASSIGN(const auto runs,
                       ParseMeasuredRuns(std::string(kHeader) + row, "t"));
  const MeasuredRun& run = runs[0];
  EXPECT_EQ(run.predicted_tokens, 2);
  EXPECT_TRUE(run.recompute_experts);
  EXPECT_EQ(run.recompute_groups, OperatorGroups{OperatorGroup::kNorms});
  ASSERT_OK_AND_ASSIGN(ModelSpec model, LoadModel("nemotron-3-super-120b-a12b",
                                                  kDataDir, ReadFile));
  ModuleSpec& backbone = model.modules[ModuleId(0)];
  const int32_t layers = backbone.layers.size();
  const int64_t parameters = Parameters(backbone);
  AddPredictedTokens(2, &backbone);
  // A projection, attention, experts and the tied head each.
  ASSERT_EQ(backbone.layers.size(), layers + 2 * 4);
  const auto kind = [&](int32_t l) { return backbone.layers[LayerId(l)].name; };
  EXPECT_EQ(kind(layers - 1), "prediction_input");
  EXPECT_EQ(kind(layers), "attention");
  EXPECT_EQ(kind(layers + 1), "experts");
  EXPECT_EQ(kind(layers + 2), "loss_head");
  EXPECT_FALSE(backbone.layers[LayerId(layers + 7)].tied);
  // The published checkpoint has one such module, and in its 41 routers a
  // correction for each expert, which is not trained.
  const int64_t one = (Parameters(backbone) - parameters) / 2;
  EXPECT_EQ(parameters + one + 41 * 512, 123'611'033'088);
}

TEST(MeasuredRunsTest, ARunMayHaveClipsAndFrozenModules) {
  std::string row = kRow;
  row.replace(row.find("layers=4 hidden=512 heads=8 ffn=2048 vocab=1000"), 47,
              "model=wan2.1-t2v-14b videos=2 video=832x480x93 frozen=vae+text");
  row.replace(row.find("tp=2 pp=2"), 9, "pp=1");
  ASSERT_OK_AND_ASSIGN(const auto runs,
                       ParseMeasuredRuns(std::string(kHeader) + row, "t"));
  ClusterSpec cluster;
  cluster.gpus_per_node = 8;
  const JobSpec job = JobOf(runs[0], cluster);
  EXPECT_EQ(job.training.frozen_modules,
            (std::vector<std::string>{"vae", "text"}));
  // A microbatch of two samples is full with their four clips.
  EXPECT_EQ(job.training.microbatch_images, 4);
  const BatchMetadata batch = BatchOf(runs[0]);
  EXPECT_TRUE(batch.samples[SampleId(0)].images.empty());
  EXPECT_EQ(
      batch.samples[SampleId(0)].videos,
      (std::vector<VideoClip>(2, {.frames = 93, .width = 832, .height = 480})));
}

TEST(MeasuredRunsTest, ReadsHowMlperfSubmissionsRun) {
  std::string row = kRow;
  row.replace(0, 1, "mlperf");
  row.replace(
      row.find("attention=flash1 recompute=full"), 31,
      "precision=nvfp4-plain fp8_attention=yes weight_bytes=1 straggle=0.01 "
      "held_weight_bytes=1 fp8_activation_inputs=yes gradient_sums=apart "
      "keeps_gathered=yes "
      "optimizer_bytes=10 peak=mean encoder_recompute_layers=5 "
      "step_host_us=900 contention=0.25 order=pipeline context=gather "
      "optimizer_group=8 weight_gathers=wait bucket=768000000 loss=fp32 "
      "recompute_layers=3");
  row.replace(row.find("vocab=1000"), 10,
              "vocab=1000 adapter_rank=16 query_key_norms=1 scaled_rotary=1 "
              "biases=1 dropout=1");
  ASSERT_OK_AND_ASSIGN(
      const auto runs,
      ParseMeasuredRuns(std::string(kHeader) + row + kRow, "t.csv"));
  const MeasuredRun& run = runs[0];
  EXPECT_EQ(run.model.modules[ModuleId(0)].adapter_rank, 16);
  EXPECT_EQ(run.setup.fp8_recipe, Fp8Recipe::kFp4Plain);
  EXPECT_EQ(run.setup.update_contention, 0.25);
  EXPECT_TRUE(run.setup.fp8_attention);
  EXPECT_TRUE(run.setup.fp8_gathers);
  EXPECT_EQ(run.setup.weight_bytes, 1);
  EXPECT_EQ(run.setup.held_weight_bytes, 1);
  EXPECT_TRUE(run.setup.fp8_activation_inputs);
  EXPECT_TRUE(run.setup.keeps_gathered);
  EXPECT_TRUE(run.setup.sum_gradients_apart);
  EXPECT_TRUE(run.model.modules[ModuleId(0)]
                  .layers[LayerId(1)]
                  .attention.query_key_norms);
  EXPECT_TRUE(run.model.modules[ModuleId(0)]
                  .layers[LayerId(1)]
                  .attention.scaled_rotary);
  const auto& layers = run.model.modules[ModuleId(0)].layers;
  EXPECT_TRUE(layers[LayerId(0)].dropout);
  EXPECT_TRUE(layers[LayerId(1)].dropout);
  EXPECT_TRUE(layers[LayerId(1)].biases);
  const auto plain = ParseMeasuredRuns(std::string(kHeader) + kRow, "t.csv");
  ASSERT_TRUE(plain.ok());
  const LayerSpec& block =
      (*plain)[0].model.modules[ModuleId(0)].layers[LayerId(1)];
  const AttentionSpec& a = block.attention;
  EXPECT_EQ(layers[LayerId(1)].vector_parameters - block.vector_parameters,
            (a.heads + 2 * a.kv_heads) * a.head_dim + 2 * block.hidden +
                (block.ffn.gated ? 2 : 1) * block.ffn.hidden);
  EXPECT_EQ(run.setup.optimizer_group, 8);
  EXPECT_TRUE(run.setup.gathers_wait);
  EXPECT_FALSE(run.setup.broadcasts_weights);
  EXPECT_EQ(run.setup.bucket_parameters, 768'000'000);
  EXPECT_TRUE(run.setup.fp32_loss);
  EXPECT_EQ(run.setup.straggle, 0.01);
  EXPECT_EQ(run.setup.host_per_step, Microseconds(900));
  EXPECT_EQ(run.parallel.order, GpuOrder::kPipelineInside);
  EXPECT_EQ(run.parallel.context, ContextParallelism::kAllGather);
  EXPECT_TRUE(run.recompute);
  EXPECT_EQ(run.recomputed_layers, 3);
  EXPECT_EQ(run.recomputed_encoder_layers, 5);
  EXPECT_EQ(run.setup.optimizer_bytes, 10);
  EXPECT_EQ(run.peak_kind, PeakKind::kMean);
  row.replace(row.find("weight_gathers=wait"), 19, "weight_gathers=broadcast");
  ASSERT_OK_AND_ASSIGN(
      const auto owned,
      ParseMeasuredRuns(std::string(kHeader) + row + kRow, "t.csv"));
  EXPECT_TRUE(owned[0].setup.gathers_wait);
  EXPECT_TRUE(owned[0].setup.broadcasts_weights);
  // Off elsewhere.
  EXPECT_EQ(runs[1].setup.optimizer_group, 0);
  EXPECT_FALSE(runs[1].setup.gathers_wait);
  EXPECT_FALSE(runs[1].setup.fp32_loss);
  EXPECT_EQ(runs[1].setup.straggle, 0);
  EXPECT_EQ(runs[1].setup.host_per_step, kZero);
  EXPECT_EQ(runs[1].setup.update_contention, 0.5);
  EXPECT_EQ(runs[1].setup.held_weight_bytes, 2);
  EXPECT_FALSE(runs[1].setup.fp8_activation_inputs);
  EXPECT_FALSE(runs[1].setup.sum_gradients_apart);
  EXPECT_EQ(runs[1].setup.optimizer_bytes, 12);
  EXPECT_EQ(runs[1].recomputed_encoder_layers, 0);
  EXPECT_EQ(runs[1].peak_kind, PeakKind::kAllocated);
  EXPECT_EQ(runs[1].recomputed_layers, 0);
}

TEST(MeasuredRunsTest, ReadsSchedulesAndDelayedLinks) {
  std::string row = kRow;
  const size_t at = row.find(" recompute");
  row.replace(at, 1, " schedule=zb-2p p2p=single delay_link=0 delay_ms=1.5 ");
  ASSERT_OK_AND_ASSIGN(
      const auto runs,
      ParseMeasuredRuns(std::string(kHeader) + kRow + row, "t.csv"));
  EXPECT_EQ(runs[0].schedule, "");
  EXPECT_FALSE(runs[0].links_both_ways);
  EXPECT_TRUE(runs[0].delayed_link.is_none());
  EXPECT_EQ(runs[1].schedule, "zb-2p");
  EXPECT_TRUE(runs[1].links_both_ways);
  EXPECT_EQ(runs[1].delayed_link, RankId(0));
  EXPECT_EQ(runs[1].delay, Microseconds(1500));
}

TEST(MeasuredRunsTest, AConfigurationIsNotAboutTheNumberOfGpusOrTheBatch) {
  std::string other = kRow;
  other.replace(other.find("dp=3"), 4, "dp=6");
  ASSERT_OK_AND_ASSIGN(
      const auto runs,
      ParseMeasuredRuns(std::string(kHeader) + kRow + other, "t.csv"));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].configuration, runs[1].configuration);
  // Nor about what another table's fit says of the host.
  std::string hosted = kRow;
  hosted.replace(hosted.find(" recompute"), 1, " host_us=30 ");
  ASSERT_OK_AND_ASSIGN(const auto on_host,
                       ParseMeasuredRuns(std::string(kHeader) + hosted, "t"));
  EXPECT_EQ(runs[0].configuration, on_host[0].configuration);
  std::string longer = kRow;
  longer.replace(longer.find(",128,"), 5, ",256,");
  ASSERT_OK_AND_ASSIGN(const auto changed,
                       ParseMeasuredRuns(std::string(kHeader) + longer, "t"));
  EXPECT_NE(runs[0].configuration, changed[0].configuration);
}

TEST(MeasuredRunsTest, AnEncoderApartIsARankAheadOfTheJobsOthers) {
  std::string row = kRow;
  row.replace(row.find("tp=2"), 4, "tp=2 encoder=apart");
  row.replace(row.find("flash1"), 6, "flash1 time=ratio");
  ASSERT_OK_AND_ASSIGN(
      const auto runs,
      ParseMeasuredRuns(std::string(kHeader) + kRow + row, "t.csv"));
  EXPECT_FALSE(runs[0].encoder_apart || runs[0].relative);
  EXPECT_TRUE(runs[1].encoder_apart && runs[1].relative);
  const ClusterSpec cluster{.gpus_per_node = 8};
  EXPECT_EQ(JobOf(runs[1], cluster).parallel.pp,
            JobOf(runs[0], cluster).parallel.pp + 1);
}

TEST(MeasuredRunsTest, ErrorsNameTheLineTheColumnAndWhatIsRight) {
  const struct {
    const char* from;
    const char* to;
    const char* says;
  } cases[] = {
      {"tp=2", "tp=0", "layout"},
      {"tp=2", "teepee=2", "teepee"},
      {"hidden=512 ", "", "hidden"},
      {"flash1", "flash9", "unfused"},
      {"flash1", "flash1 schedule=zb", "zb-2p"},
      {"flash1", "flash1 delay_link=9999", "delay_link=9999"},
      {"flash1", "flash1 delay_ms=5", "delay_link=-1"},
      {"flash1", "flash1 time=ratio", "unless the encoder is apart"},
      {",24,", ",25,", "multiple of microbatch x dp, which is 6"},
      {",12.5,", ",-1,", "step_ms"},
      {",12.5,", ",nan,", "step_ms"},
      {",held-out", ",maybe", "empty, fit or held-out"},
      {"pp=2", "pp=20", "number of layers"},
      {"pp=2", "pp=2 stages=1+2+1", "one number for each of pp x vp"},
      {"pp=2", "pp=2 stages=1,2", "csv:2"},
      {"recompute=full", "recompute=norms+all", "moe_activations"},
      {"layers=4 hidden=512 heads=8 ffn=2048 vocab=1000",
       "model=qwen2.5-vl-7b images=1", "WIDTHxHEIGHT"},
      {"layers=4 hidden=512 heads=8 ffn=2048 vocab=1000",
       "model=qwen2.5-vl-7b images=1 image=448", "image=448"},
      {"layers=4 hidden=512 heads=8 ffn=2048 vocab=1000",
       "model=wan2.1-t2v-14b videos=1 video=832x480", "video=832x480"},
      {"layers=4 hidden=512 heads=8 ffn=2048 vocab=1000",
       "model=wan2.1-t2v-14b video=832x480x93", "where videos are"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.to);
    std::string row = kRow;
    ASSERT_NE(row.find(c.from), std::string::npos);
    row.replace(row.find(c.from), std::string(c.from).size(), c.to);
    const auto runs = ParseMeasuredRuns(std::string(kHeader) + row, "t.csv");
    EXPECT_THAT(runs.status(), FailsWith(absl::StatusCode::kInvalidArgument,
                                         HasSubstr(c.says)));
    EXPECT_THAT(runs.status().ToString(), HasSubstr("t.csv:2"));
  }
  EXPECT_FALSE(ParseMeasuredRuns("", "t.csv").ok());
  EXPECT_FALSE(ParseMeasuredRuns(kHeader, "t.csv").ok());
}

TEST(MeasuredRunsTest, EveryShippedTableIsRead) {
  int tables = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(kDataDir) / "validation")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".csv" ||
        name == "pipeline_replay_pp8.csv") {
      continue;
    }
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         ReadFile(entry.path().string()));
    const auto runs = ParseMeasuredRuns(text, name);
    EXPECT_THAT(runs, IsOk());
    ++tables;
  }
  EXPECT_GE(tables, 8);
}

}  // namespace
}  // namespace pipeloom::formats
