// ModelSpec, ClusterSpec, ParallelLayout, JobSpec, Partition and Microbatches:
// what each validator refuses and how it says so, and closed forms of counts.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerSpec Block(int64_t hidden = 8, int64_t heads = 2) {
  LayerSpec layer{.name = "block", .hidden = hidden};
  layer.attention = {.kind = AttentionKind::kCausal,
                     .heads = heads,
                     .kv_heads = heads,
                     .head_dim = hidden / heads};
  layer.ffn = {.hidden = 4 * hidden};
  return layer;
}

// An encoder of 2 layers that feeds a backbone of 3.
JobSpec SmallJob() {
  JobSpec job{.name = "small"};
  job.model.name = "tiny";
  job.model.modules = {
      {.name = "encoder",
       .role = ModuleRole::kEncoder,
       .layers = {Block(), Block()}},
      {.name = "backbone", .layers = {Block(), Block(), Block()}}};
  job.model.edges = {{.from = ModuleId(0), .to = ModuleId(1)}};
  job.cluster = {
      .name = "box",
      .device = {.name = "gpu",
                 .bf16 = {1e15},
                 .fp8 = {},
                 .memory = 80 * kGibibyte,
                 .memory_bandwidth = {3e12},
                 .gemm_efficiency = 0.7,
                 .attention_efficiency = 0.5,
                 .memory_efficiency = 0.8,
                 .host_bandwidth = {5e10}},
      .num_nodes = 2,
      .gpus_per_node = 8,
      .intra_node = {.latency = Microseconds(2), .bandwidth = {4e11}},
      .inter_node = {.latency = Microseconds(5), .bandwidth = {5e10}}};
  job.parallel = {.tp = 2, .pp = 4, .dp = 2};
  job.training = {.microbatches = 4, .microbatch_tokens = 4096};
  return job;
}

TEST(JobSpecTest, EachFaultIsNamedWithItsFieldAndWhatIsAllowed) {
  ASSERT_THAT(ValidateJobSpec(SmallJob()), IsOk());
  struct Case {
    const char* message;
    std::function<void(JobSpec&)> break_it;
  };
  const ModuleId enc(0);
  const LayerId l0(0);
  const Case cases[] = {
      // The model.
      {"model \"tiny\": modules is empty",
       [](JobSpec& j) { j.model.modules.clear(); }},
      {"module name \"encoder\" is empty or used twice",
       [](JobSpec& j) { j.model.modules[ModuleId(1)].name = "encoder"; }},
      {"module \"encoder\": layers is empty",
       [&](JobSpec& j) { j.model.modules[enc].layers.clear(); }},
      {"module \"encoder\": layer 0 (block): ffn.hidden is -1; it must be >= "
       "0",
       [&](JobSpec& j) { j.model.modules[enc].layers[l0].ffn.hidden = -1; }},
      {"hidden is 0; it must be > 0",
       [&](JobSpec& j) { j.model.modules[enc].layers[l0].hidden = 0; }},
      {"attention needs heads, kv_heads and head_dim > 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention.kv_heads = 0;
       }},
      {"kv_heads is 2; it must divide heads, which is 3",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention.heads = 3;
       }},
      {"window attention needs window > 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention.kind =
             AttentionKind::kWindow;
       }},
      {"experts need expert_hidden > 0 and experts_per_token in [1, experts]",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].ffn = {
             .experts = 2, .experts_per_token = 3, .expert_hidden = 4};
       }},
      {"ffn.hidden is 32 and ffn.experts is 2; a layer has a dense part or "
       "experts, so one must be 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].ffn = {.hidden = 32,
                                                .experts = 2,
                                                .experts_per_token = 1,
                                                .expert_hidden = 4};
       }},
      {"ffn.shared_experts is 1; it must be 0 unless there are experts",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].ffn = {.shared_experts = 1,
                                                .expert_hidden = 32};
       }},
      {"ffn.expert_hidden is 4; it must be 0 unless there are experts",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].ffn.expert_hidden = 4;
       }},
      {"attention.kind is ATTENTION_KIND_NONE or not given, and attention has "
       "2 heads",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention.kind = AttentionKind::kNone;
       }},
      {"attention, state_space and delta_net: a layer must have at most one of "
       "them",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].state_space = {
             .heads = 4, .head_dim = 8, .state_dim = 16};
       }},
      {"state_space needs heads, head_dim and state_dim > 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention = {};
         j.model.modules[enc].layers[l0].state_space = {.heads = 4};
       }},
      {"state_space.groups is 3; it must divide heads, which is 4",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention = {};
         j.model.modules[enc].layers[l0].state_space = {
             .heads = 4, .head_dim = 8, .state_dim = 16, .groups = 3};
       }},
      {"delta_net.key_heads is 3; it must divide value_heads, which is 4",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention = {};
         j.model.modules[enc].layers[l0].delta_net = {
             .key_heads = 3, .value_heads = 4, .key_dim = 8, .value_dim = 8};
       }},
      {"delta_net.kernel and chunk must be > 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention = {};
         j.model.modules[enc].layers[l0].delta_net = {.key_heads = 4,
                                                      .value_heads = 4,
                                                      .key_dim = 8,
                                                      .value_dim = 8,
                                                      .chunk = 0};
       }},
      {"attention.output_gate is true; it must be false without attention",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].attention.output_gate = true;
         j.model.modules[enc].layers[l0].attention.query_rank = 4;
       }},
      {"ffn.latent is 4; it must be 0 unless there are experts",
       [&](JobSpec& j) { j.model.modules[enc].layers[l0].ffn.latent = 4; }},
      {"vocab is 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].kind = LayerKind::kLossHead;
       }},
      {"linears is empty",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].kind = LayerKind::kLinears;
       }},
      {"each of linears needs in > 0 and out > 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].kind = LayerKind::kLinears;
         j.model.modules[enc].layers[l0].linears = {{.in = 3, .out = 0}};
       }},
      {"fixed_flops_per_token is -1; it must be >= 0",
       [&](JobSpec& j) {
         j.model.modules[enc].layers[l0].fixed_flops_per_token = -1;
       }},
      {"there are 2 modules",
       [](JobSpec& j) { j.model.edges[0].to = ModuleId(2); }},
      {"must not feed each other in a circle",
       [](JobSpec& j) {
         j.model.edges.push_back({.from = ModuleId(1), .to = ModuleId(0)});
       }},
      {"must not feed each other in a circle",
       [](JobSpec& j) { j.model.edges[0].from = ModuleId(1); }},
      {"is given twice",
       [](JobSpec& j) { j.model.edges.push_back(j.model.edges[0]); }},
      // The cluster.
      {"cluster \"box\": num_nodes is 0; it must be > 0",
       [](JobSpec& j) { j.cluster.num_nodes = 0; }},
      {"device.bf16_flops_per_second is 989; it must be at least 1e+09 "
       "FLOP/s; such as 989e12 is meant?",
       [](JobSpec& j) { j.cluster.device.bf16 = {989}; }},
      {"device.fp8_flops_per_second is 1978; it must be at least 1e+09",
       [](JobSpec& j) { j.cluster.device.fp8 = {1978}; }},
      {"device.memory is 0; it must be > 0",
       [](JobSpec& j) { j.cluster.device.memory = Bytes(0); }},
      {"intra_node.latency is -1; it must be >= 0",
       [](JobSpec& j) { j.cluster.intra_node.latency = Nanoseconds(-1); }},
      {"device.gemm_efficiency is 1.5; it must be in (0, 1]",
       [](JobSpec& j) { j.cluster.device.gemm_efficiency = 1.5; }},
      // The layout.
      {"parallel.tp is 0; it must be in [1, 65536]",
       [](JobSpec& j) { j.parallel.tp = 0; }},
      {"parallel.expert_tp is 3; it must be 1 or tp, which is 2",
       [](JobSpec& j) { j.parallel.expert_tp = 3; }},
      {"parallel.ep is 8; it must divide dp 2 x cp 1 x tp 2 / expert_tp 2 = 2",
       [](JobSpec& j) { j.parallel.ep = 8; }},
      {"parallel.ep is 3; it must divide dp 2 x cp 1 x tp 2 / expert_tp 1 = 4",
       [](JobSpec& j) {
         j.parallel.ep = 3;
         j.parallel.expert_tp = 1;
       }},
      {"setup.expert_imbalance is 0.5; it must be in [1, 1000]",
       [](JobSpec& j) { j.setup.expert_imbalance = 0.5; }},
      {"setup.weight_bytes is 9; it must be in [1, 8]",
       [](JobSpec& j) { j.setup.weight_bytes = 9; }},
      {"setup.held_weight_bytes is 4; it must be 1 or 2",
       [](JobSpec& j) { j.setup.held_weight_bytes = 4; }},
      {"setup.optimizer_bytes is 17; it must be in [0, 16]",
       [](JobSpec& j) { j.setup.optimizer_bytes = 17; }},
      {"setup.optimizer_group is -1; it must be at least 0",
       [](JobSpec& j) { j.setup.optimizer_group = -1; }},
      {"setup.bucket_parameters is -1; it must be at least 0",
       [](JobSpec& j) { j.setup.bucket_parameters = -1; }},
      {"setup.straggle is -1; it must be in [0, 1]",
       [](JobSpec& j) { j.setup.straggle = -1; }},
      {"setup.update_contention is 1.5; it must be in [0, 1]",
       [](JobSpec& j) { j.setup.update_contention = 1.5; }},
      {"setup.host_per_step_us is 2e+06; it must be in [0, 1e6]",
       [](JobSpec& j) { j.setup.host_per_step = Seconds(2); }},
      {"module \"backbone\": adapter_rank is -1; it must be in [0, 1048576]",
       [](JobSpec& j) { j.model.modules[ModuleId(1)].adapter_rank = -1; }},
      {"adapter_rank is 8, but no layer has a token mixer",
       [](JobSpec& j) {
         j.model.modules[ModuleId(1)].adapter_rank = 8;
         for (LayerSpec& layer : j.model.modules[ModuleId(1)].layers) {
           layer.attention = {};
           layer.attention.kind = AttentionKind::kNone;
           layer.ffn = {.hidden = 64};
         }
       }},
      {"needs 32 GPUs; cluster \"box\" has 16 (2 nodes of 8)",
       [](JobSpec& j) { j.parallel.dp = 4; }},
      // Training and search.
      {"training.microbatches is 0",
       [](JobSpec& j) { j.training.microbatches = 0; }},
      {"training.microbatch_tokens is 0; it must be >= 1",
       [](JobSpec& j) { j.training.microbatch_tokens = 0; }},
      {"training.microbatch_samples is -1",
       [](JobSpec& j) { j.training.microbatch_samples = -1; }},
      {"training.microbatch_images is -1",
       [](JobSpec& j) { j.training.microbatch_images = -1; }},
      {"training.microbatch_seconds is nan",
       [](JobSpec& j) { j.training.microbatch_seconds = std::nan(""); }},
      {"training.memory_limit is -5; it must be >= 0",
       [](JobSpec& j) { j.training.memory_limit = Bytes(-5); }},
      {"training.memory_reserve is 1; it must be in [0, 1)",
       [](JobSpec& j) { j.training.memory_reserve = 1; }},
      {"training.memory_reserve is -0.1; it must be in [0, 1)",
       [](JobSpec& j) { j.training.memory_reserve = -0.1; }},
      {"training.memory_reserve is nan; it must be in [0, 1)",
       [](JobSpec& j) { j.training.memory_reserve = std::nan(""); }},
      {"training.frozen_modules names \"vision\"; the model has encoder, "
       "backbone",
       [](JobSpec& j) { j.training.frozen_modules = {"vision"}; }},
      {"training.sub_microbatch_sizes names \"x\"",
       [](JobSpec& j) {
         j.training.sub_microbatch_sizes = {{"x", 1}};
       }},
      {"it must be >= 1 and given once",
       [](JobSpec& j) {
         j.training.sub_microbatch_sizes = {{"encoder", 1}, {"encoder", 2}};
       }},
      {"training.shape_buckets of \"x\": the model has encoder, backbone",
       [](JobSpec& j) {
         j.training.shape_buckets = {{"x", {1}}};
       }},
      {"training.shape_buckets of \"encoder\": given twice",
       [](JobSpec& j) {
         j.training.shape_buckets = {{"encoder", {1}}, {"encoder", {2}}};
       }},
      {"training.shape_buckets of \"encoder\": training.batching is "
       "SEQUENCE_BATCHING_PADDED; buckets need SEQUENCE_BATCHING_PACKED",
       [](JobSpec& j) {
         j.training.batching = SequenceBatching::kPadded;
         j.training.shape_buckets = {{"encoder", {5}}};
       }},
      {"training.shape_buckets of \"encoder\": 0 token counts",
       [](JobSpec& j) {
         j.training.shape_buckets = {{"encoder", {}}};
       }},
      {"training.shape_buckets of \"encoder\": tokens[1] is 5",
       [](JobSpec& j) {
         j.training.shape_buckets = {{"encoder", {5, 5}}};
       }},
      {"search.deadline is -1 ns; it must be >= 0",
       [](JobSpec& j) { j.search.deadline = Nanoseconds(-1); }},
      {"search.evaluations is -1",
       [](JobSpec& j) { j.search.evaluations = -1; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    JobSpec job = SmallJob();
    c.break_it(job);
    EXPECT_THAT(
        ValidateJobSpec(job),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(JobSpecTest, DefaultsAndLookUpsFollowTheComments) {
  JobSpec job = SmallJob();
  // 80 GiB less 3 %.
  EXPECT_EQ(job.MemoryReserve(), Bytes(2'576'980'378));
  EXPECT_EQ(job.MemoryLimit(), 80 * kGibibyte - Bytes(2'576'980'378));
  job.training.memory_reserve = 0.25;
  EXPECT_EQ(job.MemoryLimit(), 60 * kGibibyte);
  job.training.memory_reserve = 0;
  EXPECT_EQ(job.MemoryLimit(), 80 * kGibibyte);
  // A limit of the job's own is taken as it is.
  job.training.memory_reserve = 0.25;
  job.training.memory_limit = Bytes(7);
  EXPECT_EQ(job.MemoryLimit(), Bytes(7));
  EXPECT_EQ(job.MemoryReserve(), Bytes(0));
  EXPECT_FALSE(job.IsFrozen(ModuleId(0)));
  job.training.frozen_modules = {"encoder"};
  EXPECT_TRUE(job.IsFrozen(ModuleId(0)));
  EXPECT_FALSE(job.IsFrozen(ModuleId(1)));
  job.training.memory_strategies = {};
  EXPECT_TRUE(job.Allows(MemoryStrategy::kKeep));
  EXPECT_FALSE(job.Allows(MemoryStrategy::kRecompute));
}

TEST(ParallelLayoutTest, MoreGpusThanCanBeCountedAreRefused) {
  const ParallelLayout largest{
      .tp = 65536, .cp = 65536, .pp = 65536, .dp = 65536};
  EXPECT_EQ(ValidateParallelLayout(largest, ClusterSpec{}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ParallelLayoutTest, ExpertsMayTakeAllGpusOfARankInAllReplicas) {
  JobSpec job = SmallJob();
  job.parallel = {.tp = 2, .cp = 2, .ep = 4, .dp = 2};
  EXPECT_THAT(ValidateJobSpec(job), IsOk());
  job.parallel.expert_tp = 1;
  job.parallel.ep = 8;
  EXPECT_THAT(ValidateJobSpec(job), IsOk());
}

TEST(ModelSpecTest, LowRankAndConvolutionWeightsHaveTheirClosedForms) {
  LayerSpec mla;
  mla.hidden = 7168;
  mla.attention = {.kind = AttentionKind::kCausal,
                   .heads = 128,
                   .kv_heads = 128,
                   .head_dim = 192,
                   .query_rank = 1536,
                   .kv_rank = 512,
                   .rope_dim = 64,
                   .value_dim = 128};
  // DeepSeek-V3: 187,105,280 in the attention of a layer.
  EXPECT_EQ(MatrixParameters(mla), 187'105'280);
  LayerSpec convolutions;
  convolutions.kind = LayerKind::kConvolutions;
  convolutions.convolutions = {{.in = 3, .out = 8, .kernel = 5, .depth = 2},
                               {.in = 8, .out = 4}};
  EXPECT_EQ(MatrixParameters(convolutions), 3 * 8 * 25 * 2 + 8 * 4 * 9);
}

TEST(ClusterSpecTest, RanksAreNeighboursAndNodesDecideTheLink) {
  const JobSpec job = SmallJob();
  const ParallelLayout& p = job.parallel;
  EXPECT_EQ(p.num_gpus(), 16);
  EXPECT_EQ(p.FirstGpu(0, RankId(3)), 6);
  EXPECT_EQ(p.FirstGpu(1, RankId(0)), 8);
  EXPECT_EQ(job.cluster.Link(6, 7), job.cluster.intra_node);
  EXPECT_EQ(job.cluster.Link(7, 8), job.cluster.inter_node);
}

// Counts of well-known shapes, from their definitions.
TEST(ModelSpecTest, ParametersHaveTheirClosedForms) {
  const int64_t h = 64;
  LayerSpec plain = Block(h, 8);
  EXPECT_EQ(MatrixParameters(plain), 12 * h * h);  // 4 attention + 8 FFN.

  LayerSpec gated = plain;
  gated.ffn = {.hidden = 3 * h, .gated = true};
  EXPECT_EQ(MatrixParameters(gated), 4 * h * h + 9 * h * h);

  LayerSpec grouped = plain;  // A quarter of the key and value heads.
  grouped.attention.kv_heads = 2;
  EXPECT_EQ(MatrixParameters(grouped), 2 * h * h + 2 * h * h / 4 + 8 * h * h);

  LayerSpec low_rank = plain;
  low_rank.attention.query_rank = 16;
  EXPECT_EQ(MatrixParameters(low_rank) - MatrixParameters(plain),
            2 * 16 * h - h * h);

  LayerSpec crossed = plain;
  crossed.cross_attention = {.heads = 8, .head_dim = 8, .context_width = 32};
  EXPECT_EQ(MatrixParameters(crossed) - MatrixParameters(plain),
            2 * h * 64 + 2 * 32 * 64);

  LayerSpec experts = plain;
  experts.ffn = {.gated = true,
                 .experts = 8,
                 .experts_per_token = 2,
                 .shared_experts = 1,
                 .expert_hidden = 16};
  const int64_t expert = 3 * h * 16;
  EXPECT_EQ(MatrixParameters(experts), 4 * h * h + 9 * expert + 8 * h);
  EXPECT_EQ(ActiveMatrixParameters(experts), 4 * h * h + 3 * expert + 8 * h);

  LayerSpec embedding{.kind = LayerKind::kEmbedding, .hidden = h, .vocab = 100};
  EXPECT_EQ(MatrixParameters(embedding), 0);
  EXPECT_EQ(Parameters(embedding), 100 * h);

  LayerSpec head{.kind = LayerKind::kLossHead, .hidden = h, .vocab = 100};
  EXPECT_EQ(Parameters(head), 100 * h);
  head.tied = true;
  EXPECT_EQ(Parameters(head), 0);
  EXPECT_EQ(MatrixParameters(head), 100 * h);

  LayerSpec linears{.kind = LayerKind::kLinears,
                    .hidden = h,
                    .linears = {{3, 5}, {5, 7}},
                    .vector_parameters = 11};
  EXPECT_EQ(Parameters(linears), 15 + 35 + 11);

  LayerSpec fixed{.kind = LayerKind::kFixedWork, .vector_parameters = 13};
  EXPECT_EQ(Parameters(fixed), 13);

  const JobSpec job = SmallJob();
  EXPECT_EQ(Parameters(job.model), 5 * Parameters(Block()));
}

Partition SmallPartition() {
  const auto stage = [](int32_t module, int32_t first, int32_t count,
                        int32_t rank, int32_t segment) {
    return Stage{.module = ModuleId(module),
                 .first_layer = LayerId(first),
                 .num_layers = count,
                 .rank = RankId(rank),
                 .segment = SegmentId(segment)};
  };
  return {.num_ranks = 2,
          .num_segments = 2,
          .stages = {stage(0, 0, 1, 0, 0), stage(0, 1, 1, 1, 0),
                     stage(1, 0, 2, 0, 1), stage(1, 2, 1, 1, 1)},
          .sub_microbatch_instances = {0, 0}};
}

TEST(PartitionTest, EachFaultIsNamed) {
  const ModelSpec model = SmallJob().model;
  ASSERT_THAT(ValidatePartition(SmallPartition(), model), IsOk());
  struct Case {
    const char* message;
    std::function<void(Partition&)> break_it;
  };
  const Case cases[] = {
      {"num_ranks must be >= 1", [](Partition& p) { p.num_ranks = 0; }},
      {"sub_microbatch_instances has 1 entries; the model has 2 modules",
       [](Partition& p) { p.sub_microbatch_instances = {1}; }},
      {"stage 1: there is no module 4",
       [](Partition& p) { p.stages[StageId(1)].module = ModuleId(4); }},
      {"stage 1: rank 2 is not in [0, 2)",
       [](Partition& p) { p.stages[StageId(1)].rank = RankId(2); }},
      {"stage 1: segment 2 is out of order or not in [0, 2)",
       [](Partition& p) { p.stages[StageId(1)].segment = SegmentId(2); }},
      {"stage 3: segment 0 is out of order",
       [](Partition& p) { p.stages[StageId(3)].segment = SegmentId(0); }},
      {"stage 3: module \"backbone\" goes on at layer 2, but the stage holds 1 "
       "layers from layer 1",
       [](Partition& p) { p.stages[StageId(3)].first_layer = LayerId(1); }},
      {"the stage holds 0 layers",
       [](Partition& p) { p.stages[StageId(3)].num_layers = 0; }},
      {"module \"backbone\": 2 of its 3 layers are on a stage",
       [](Partition& p) { p.stages.resize(3); }},
      {"module \"backbone\": 4 of its 3 layers are on a stage",
       [](Partition& p) { p.stages[StageId(3)].num_layers = 2; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Partition partition = SmallPartition();
    c.break_it(partition);
    EXPECT_THAT(
        ValidatePartition(partition, model),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
  EXPECT_THAT(SmallPartition().StagesOf(ModuleId(1)),
              ElementsAre(StageId(2), StageId(3)));
}

Microbatches SmallMicrobatches() {
  const auto sub = [](int32_t microbatch, int32_t module, int32_t index) {
    return SubMicrobatch{.module = ModuleId(module),
                         .microbatch = MicrobatchId(microbatch),
                         .index = index,
                         .shape = {.instances = 1, .tokens = 100}};
  };
  // Microbatch 1 has no image.
  return {.num_microbatches = 2,
          .sub_microbatches = {sub(0, 0, 0), sub(0, 0, 1), sub(0, 1, 0),
                               sub(1, 1, 0)}};
}

TEST(MicrobatchesTest, EachFaultIsNamed) {
  const ModelSpec model = SmallJob().model;
  ASSERT_THAT(ValidateMicrobatches(SmallMicrobatches(), model), IsOk());
  struct Case {
    const char* message;
    std::function<void(IdVector<SubMicrobatchId, SubMicrobatch>&)> break_it;
  };
  const SubMicrobatchId last(3);
  const Case cases[] = {
      {"sub-microbatch 3: microbatch 2 is not in [0, 2)",
       [&](auto& subs) { subs[last].microbatch = MicrobatchId(2); }},
      {"sub-microbatch 3: there is no module 2",
       [&](auto& subs) { subs[last].module = ModuleId(2); }},
      {"sub-microbatch 3: index 1 is out of order",
       [&](auto& subs) { subs[last].index = 1; }},
      {"sub-microbatch 3: index 0 is out of order",
       [&](auto& subs) { subs[last].microbatch = MicrobatchId(0); }},
      {"sub-microbatch 1: index 2 is out of order",
       [&](auto& subs) { subs[SubMicrobatchId(1)].index = 2; }},
      {"sub-microbatch 3: its shape has a negative size",
       [&](auto& subs) { subs[last].shape.tokens = -1; }},
      {"sub-microbatch 3: its shape has a negative size",
       [&](auto& subs) { subs[last].shape.squared_tokens = std::nan(""); }},
      {"sub-microbatch 3: its shape is empty",
       [&](auto& subs) { subs[last].shape = {}; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Microbatches microbatches = SmallMicrobatches();
    c.break_it(microbatches.sub_microbatches);
    EXPECT_THAT(
        ValidateMicrobatches(microbatches, model),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
  EXPECT_THAT(SmallMicrobatches().Of(MicrobatchId(0), ModuleId(0)),
              ElementsAre(SubMicrobatchId(0), SubMicrobatchId(1)));
  EXPECT_THAT(SmallMicrobatches().Of(MicrobatchId(1), ModuleId(0)),
              ElementsAre());
}

TEST(WorkShapeTest, ShapesAddUpAndEqualShapesHaveEqualFingerprints) {
  WorkShape a{.instances = 1,
              .tokens = 10,
              .output_tokens = 5,
              .squared_tokens = 100,
              .context_tokens = 2,
              .context_pairs = 20};
  const WorkShape b{.instances = 2,
                    .tokens = 20,
                    .output_tokens = 10,
                    .squared_tokens = 200,
                    .context_tokens = 4,
                    .context_pairs = 40};
  EXPECT_NE(a.fingerprint(), b.fingerprint());
  const WorkShape once = a;
  a += once;
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
}

}  // namespace
}  // namespace pipeloom
