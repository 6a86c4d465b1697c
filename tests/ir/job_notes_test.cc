#include "ir/job/job_notes.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/small_job.h"

namespace pipeloom {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ModuleId kEncoder(0);
constexpr ModuleId kBackbone(1);

TEST(JobNotesTest, AJobWhoseSizesFitHasNone) {
  EXPECT_THAT(JobNotes(testing::SmallVlmJob()), IsEmpty());
}

TEST(JobNotesTest, WeightsThatNoGpuCanHoldAreSaid) {
  JobSpec job = testing::SmallVlmJob();
  job.training.memory_limit = Bytes(1000);
  EXPECT_THAT(JobNotes(job), ElementsAre(HasSubstr("no plan can fit")));
}

TEST(JobNotesTest, HeadsThatTpDoesNotDivideAreNamedWithTheRemedy) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 2;
  for (LayerSpec& layer : job.model.modules[kEncoder].layers) {
    if (layer.attention.kind == AttentionKind::kNone) continue;
    layer.attention.heads = layer.attention.kv_heads = 25;
  }
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(AllOf(HasSubstr("\"encoder\" has layers of 25 heads"),
                        HasSubstr("tp = 2 does not divide"),
                        HasSubstr("use tp = 1 for it in parallel.modules"))));
  job.module_parallelism = {{.module = "encoder", .tp = 1}};
  EXPECT_THAT(JobNotes(job), IsEmpty());
}

TEST(JobNotesTest, AllToAllContextParallelismSharesTheHeadsToo) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.cp = 3;
  job.cluster.gpus_per_node = 9;
  job.training.microbatch_tokens = 6 * 512;
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.parallel.context = ContextParallelism::kAllToAll;
  EXPECT_THAT(JobNotes(job),
              ElementsAre(HasSubstr("tp x cp = 3"), HasSubstr("tp x cp = 3")));
}

TEST(JobNotesTest, MixersShareTheirHeadsOverTpAndCp) {
  JobSpec job = testing::SmallVlmJob();
  LayerSpec layer;
  layer.name = "state_space";
  layer.hidden = job.model.modules[ModuleId(1)].layers[LayerId(0)].hidden;
  layer.state_space = {
      .heads = 12, .head_dim = 8, .state_dim = 16, .groups = 3};
  job.model.modules[ModuleId(1)].layers.push_back(layer);
  job.parallel.tp = 2;
  job.parallel.cp = 4;
  EXPECT_THAT(
      JobNotes(job),
      AllOf(Contains(HasSubstr("layers of 12 heads of a mixer, which tp x cp = "
                               "8 does not divide")),
            Contains(HasSubstr("layers of 3 groups of a state space, which tp "
                               "= 2 does not divide"))));
}

TEST(JobNotesTest, ExpertsThatEpDoesNotDivideAreNamed) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.ep = job.parallel.dp = 4;
  for (LayerSpec& layer : job.model.modules[kBackbone].layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    layer.ffn = {.gated = true,
                 .experts = 6,
                 .experts_per_token = 2,
                 .expert_hidden = 128};
  }
  EXPECT_THAT(JobNotes(job),
              ElementsAre(AllOf(HasSubstr("6 experts, which ep = 4"),
                                HasSubstr("use ep = 2 in parallel"))));
}

TEST(JobNotesTest, PrecisionsThatADeviceDoesNotHaveAreSaid) {
  JobSpec job = testing::SmallVlmJob();
  DeviceSpec& device = job.cluster.device;
  job.model.modules[kEncoder].precision = Precision::kFp8;
  job.setup.fp8_products = true;
  device.fp8 = {1.979e15};
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.setup.fp8_recipe = Fp8Recipe::kFp4;
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(HasSubstr("setup.fp8_recipe is FP8_RECIPE_FP4, but")));
  device.bf16 = {2.25e15};
  EXPECT_THAT(JobNotes(job), IsEmpty());
  device.fp8 = {};
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(HasSubstr("module \"encoder\" is PRECISION_FP8, but device"),
                  HasSubstr("setup.fp8_products is true, but device")));
}

TEST(JobNotesTest, BlocksOfScalesNeedADeviceThatHasThem) {
  JobSpec job = testing::SmallVlmJob();
  job.cluster.device.fp8 = {1.979e15};
  job.setup.fp8_products = true;
  job.setup.fp8_recipe = Fp8Recipe::kBlocks;
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(
          AllOf(HasSubstr("setup.fp8_recipe is FP8_RECIPE_BLOCKS, but device"),
                HasSubstr("take the time of FP8_RECIPE_TENSOR"))));
  job.cluster.device.bf16 = {2.25e15};
  EXPECT_THAT(JobNotes(job), IsEmpty());
}

TEST(JobNotesTest, SettingsOfFp8ProductsNeedThem) {
  JobSpec job = testing::SmallVlmJob();
  job.cluster.device.fp8 = {4.5e15};
  job.cluster.device.bf16 = {2.25e15};
  job.setup.fp8_recipe = Fp8Recipe::kBlocks;
  job.setup.fp8_attention = true;
  job.setup.fp8_gathers = true;
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(
          HasSubstr("setup.fp8_recipe is given, but setup.fp8_products"),
          HasSubstr("setup.fp8_attention is given"),
          HasSubstr("setup.fp8_gathers is given")));
  job.setup.fp8_products = true;
  EXPECT_THAT(JobNotes(job), IsEmpty());
}

TEST(JobNotesTest, AMemoryLimitAboveTheMemoryIsSaid) {
  JobSpec job = testing::SmallVlmJob();
  job.training.memory_limit = job.cluster.device.memory;
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.training.memory_limit = Bytes(1'000'000'000'000);
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(
          AllOf(HasSubstr("memory_limit_bytes is 931.3 GiB, but device"),
                HasSubstr(absl::StrCat(
                    "use ", job.cluster.device.memory.count(), " or less")))));
}

TEST(JobNotesTest, KeyValueHeadsThatTpDoesNotDivideAreNamed) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  const auto set_heads = [&](int64_t heads, int64_t kv_heads) {
    for (LayerSpec& layer : job.model.modules[kBackbone].layers) {
      if (layer.attention.kind == AttentionKind::kNone) continue;
      layer.attention.heads = heads;
      layer.attention.kv_heads = kv_heads;
    }
  };
  set_heads(24, 4);
  EXPECT_THAT(JobNotes(job), IsEmpty());
  set_heads(24, 2);
  EXPECT_THAT(
      JobNotes(job),
      ElementsAre(AllOf(HasSubstr("2 key-value heads, which tp = 4"),
                        HasSubstr("versions of Megatron-Core refuse that"),
                        HasSubstr("repeated on several GPUs"),
                        HasSubstr("use tp = 2"))));
  set_heads(24, 6);
  EXPECT_THAT(JobNotes(job), ElementsAre(HasSubstr("those of an even share")));
  for (LayerSpec& layer : job.model.modules[kBackbone].layers) {
    if (layer.attention.kind != AttentionKind::kNone) {
      layer.attention.kv_rank = 64;
    }
  }
  EXPECT_THAT(JobNotes(job), IsEmpty()) << "low ranks have no such heads";
}

TEST(JobNotesTest, RanksWithoutALayerAreSaid) {
  JobSpec job = testing::SmallVlmJob();
  int32_t layers = 0;
  for (const ModuleSpec& module : job.model.modules) {
    layers += module.layers.size();
  }
  job.parallel.pp = layers;
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.parallel.pp = layers + 3;
  EXPECT_THAT(JobNotes(job),
              ElementsAre(AllOf(HasSubstr("so 3 ranks or more have none"),
                                HasSubstr(absl::StrCat("pp = ", layers)))));
}

TEST(JobNotesTest, GroupsOverTwoNodesAreNamed) {
  JobSpec job = testing::SmallVlmJob();
  job.cluster.gpus_per_node = 72;
  job.cluster.num_nodes = 4;
  job.parallel = {.tp = 4, .cp = 4, .pp = 4, .dp = 1};  // GPUs 0 to 63.
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.parallel.dp = 2;
  EXPECT_THAT(JobNotes(job),
              ElementsAre(AllOf(HasSubstr("parallel.tp x parallel.cp is 16, "
                                          "which does not divide the 72 GPUs "
                                          "of a node: GPUs 64 to 79"),
                                HasSubstr("cluster.gpus_per_node to 64"))));
  job.parallel.cp = 1;
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.cluster.gpus_per_node = 6;
  EXPECT_THAT(JobNotes(job),
              ElementsAre(HasSubstr("parallel.tp is 4, which does not divide "
                                    "the 6 GPUs of a node: GPUs 4 to 7")));
  job.cluster.gpus_per_node = 2;
  job.cluster.domain = {.kind = DomainKind::kSwitch, .gpus = 6};
  EXPECT_THAT(JobNotes(job),
              ElementsAre(AllOf(HasSubstr("of a domain: GPUs 4 to 7"),
                                HasSubstr("cluster.domain.gpus to 4"))));
  job.cluster.domain.gpus = 8;
  EXPECT_THAT(JobNotes(job), IsEmpty());
}

TEST(JobNotesTest, TokensThatCpDoesNotDivideAreNamed) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.cp = 4;
  job.training.microbatch_tokens = 2050;
  EXPECT_THAT(JobNotes(job),
              ElementsAre(AllOf(HasSubstr("microbatch_tokens is 2050"),
                                HasSubstr("2056 is the next"))));
}

TEST(JobNotesTest, AStepThatTrainsNothingIsNamed) {
  JobSpec job = testing::SmallVlmJob();
  job.training.frozen_modules = {"encoder"};
  EXPECT_THAT(JobNotes(job), IsEmpty());
  job.training.frozen_modules = {"encoder", "backbone"};
  EXPECT_THAT(JobNotes(job), ElementsAre(HasSubstr("trains nothing")));
}

}  // namespace
}  // namespace pipeloom
