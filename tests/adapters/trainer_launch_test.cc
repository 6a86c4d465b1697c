// The launch arguments of trainers have the settings that a plan's prediction
// rests on; settings that a trainer does not have are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "adapters/trainer_files.h"
#include "base/status_macros.h"
#include "ir/plan/trainer.h"
#include "tests/adapters/trainer_plans.h"
#include "tests/planner/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::adapters {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanForTrainer;
using ::pipeloom::testing::RandomJobCase;
using ::pipeloom::testing::SmallVlmJob;
using ::pipeloom::testing::TrainerPlanned;
using ::testing::HasSubstr;
using ::testing::Not;

const TrainerLimits& Trainer(absl::string_view name) {
  return *FindTrainer(name);
}

// Returns the launch arguments of a small job that `change` has changed.
template <typename Change>
absl::StatusOr<std::string> LaunchWith(absl::string_view name,
                                       const Change& change) {
  RandomJobCase made{SmallVlmJob(),
                     ::pipeloom::testing::RandomBatch(3, 200, 2)};
  made.job.cluster.num_nodes = 64;
  made.job.parallel.dp = 2;
  made.job.parallel.pp = 2;
  made.job.training.microbatches = 2;
  change(made.job);
  const TrainerLimits& trainer = Trainer(name);
  PIPELOOM_ASSIGN_OR_RETURN(const TrainerPlanned planned,
                            PlanForTrainer(trainer, made, 1));
  PIPELOOM_ASSIGN_OR_RETURN(const TrainerFile file,
                            ScheduleFileOf(trainer, planned.result.plan));
  return LaunchArguments(trainer, made.job, planned.partition,
                         planned.recompute, file, "plan");
}

void AddExperts(JobSpec& job) {
  for (LayerSpec& layer : job.model.modules[ModuleId(1)].layers) {
    if (layer.ffn.hidden == 0) continue;
    layer.ffn.experts = 8;
    layer.ffn.experts_per_token = 2;
  }
}

// Settings that a prediction rests on are those of the launch.
TEST(TrainerLaunch, SaysHowGpusAndStateAreDivided) {
  const struct {
    const char* trainer;
    void (*change)(JobSpec&);
    std::vector<const char*> says;
    std::vector<const char*> not_says{};
  } cases[] = {
      {"megatron",
       [](JobSpec&) {},
       {"--use-distributed-optimizer\n", "--micro-batch-size 1\n--seq-length ",
        "--use-tp-pp-dp-mapping\n"},
       {"--sequence-parallel", "--cp-comm-type", "instances",
        "--expert-tensor"}},
      {"megatron",
       [](JobSpec& job) { job.parallel.order = GpuOrder::kReplicasInside; },
       {},
       {"--use-tp-pp-dp-mapping", "neighbouring"}},
      // Megatron-Core stops at that order unless there are as many replicas of
      // experts as of other layers, in models without experts too.
      {"megatron",
       [](JobSpec& job) { job.parallel.cp = 2; },
       {"# the prediction is for pipeline ranks on neighbouring GPUs",
        "CUDA_DEVICE_MAX_CONNECTIONS=1"},
       {"--use-tp-pp-dp-mapping"}},
      {"megatron",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.ep = 2;
       },
       {"# the prediction is for pipeline ranks on neighbouring GPUs"},
       {"--use-tp-pp-dp-mapping"}},
      {"megatron",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.tp = 2;
         job.parallel.ep = 2;
         job.parallel.expert_tp = 1;
       },
       {"--use-tp-pp-dp-mapping\n"},
       {"neighbouring"}},
      {"torchtitan",
       [](JobSpec&) {},
       {"# the prediction is for pipeline ranks on neighbouring GPUs"}},
      {"torchtitan",
       [](JobSpec& job) { job.parallel.order = GpuOrder::kReplicasInside; },
       {},
       {"neighbouring"}},
      {"deepspeed",
       [](JobSpec&) {},
       {"# the prediction is for pipeline ranks on neighbouring GPUs"}},
      {"megatron",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kNone;
       },
       {},
       {"--use-distributed-optimizer"}},
      {"megatron-stock",
       [](JobSpec& job) { job.parallel.tp = 2; },
       {"--tensor-model-parallel-size 2\n", "--sequence-parallel\n"},
       {}},
      {"megatron",
       [](JobSpec& job) {
         job.parallel.tp = 2;
         job.setup.sequence_parallel = false;
       },
       {"--tensor-model-parallel-size 2\n"},
       {"--sequence-parallel"}},
      {"megatron",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.tp = 2;
         job.parallel.ep = 4;
         job.parallel.expert_tp = 1;
       },
       {"--expert-model-parallel-size 4\n",
        "--expert-tensor-parallel-size 1\n"}},
      {"megatron",
       [](JobSpec& job) { job.parallel.cp = 2; },
       {"--cp-comm-type p2p\n"}},
      {"megatron",
       [](JobSpec& job) {
         job.parallel.cp = 2;
         job.parallel.context = ContextParallelism::kAllToAll;
       },
       {"--cp-comm-type a2a\n"}},
      {"megatron",
       [](JobSpec& job) {
         job.parallel.cp = 2;
         job.parallel.context = ContextParallelism::kAllGather;
       },
       {"--cp-comm-type all_gather\n"}},
      {"megatron",
       [](JobSpec& job) { job.setup.optimizer_group = 1; },
       {"--num-distributed-optimizer-instances 2\n"}},
      {"megatron",
       [](JobSpec& job) { job.training.microbatch_samples = 2; },
       {},
       {"--seq-length", "--micro-batch-size"}},
      {"torchtitan",
       [](JobSpec& job) { job.training.microbatch_tokens = 3000; },
       {"\"data_parallel_replicate_degree\": 1,\n",
        "\"data_parallel_shard_degree\": 2,\n",
        "\"fsdp_reshard_after_forward\": \"never\",\n",
        "\"enable_sequence_parallel\": True,\n", "\"seq_len\": 3000,\n"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kNone;
         job.setup.sequence_parallel = false;
       },
       {"\"data_parallel_replicate_degree\": 2,\n",
        "\"data_parallel_shard_degree\": 1,\n",
        "\"enable_sequence_parallel\": False,\n"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero3;
       },
       {"\"data_parallel_shard_degree\": 2,\n",
        "\"fsdp_reshard_after_forward\": \"always\",\n"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero3;
         job.setup.gathered_in_pipeline = true;
       },
       {"\"fsdp_reshard_after_forward\": \"never\",\n"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.parallel.dp = 4;
         job.setup.optimizer_group = 2;
       },
       {"\"data_parallel_replicate_degree\": 2,\n",
        "\"data_parallel_shard_degree\": 2,\n"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.parallel.dp = 4;
         job.training.optimizer_sharding = OptimizerSharding::kZero3;
         job.setup.optimizer_group = 2;
       },
       {"\"data_parallel_replicate_degree\": 2,\n",
        "\"data_parallel_shard_degree\": 2,\n",
        "\"fsdp_reshard_after_forward\": \"always\",\n"}},
      {"deepspeed",
       [](JobSpec&) {},
       {"ZERO_OPTIMIZATION = {\"stage\": 1}\n"},
       {"topology"}},
      {"deepspeed",
       [](JobSpec& job) {
         job.parallel.tp = 2;
         job.training.optimizer_sharding = OptimizerSharding::kNone;
       },
       {"ZERO_OPTIMIZATION = {\"stage\": 0}\n", "num_mp=2, num_dp=2)"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.trainer, " ", &one - cases));
    ASSERT_OK_AND_ASSIGN(const std::string launch,
                         LaunchWith(one.trainer, one.change));
    for (const char* text : one.says) EXPECT_THAT(launch, HasSubstr(text));
    for (const char* text : one.not_says) {
      EXPECT_THAT(launch, Not(HasSubstr(text)));
    }
  }
}

// Trainers do otherwise by themselves: Megatron-LM computes in 32 bits,
// overlaps nothing, gathers the tokens of experts and has one microbatch a
// replica; torchtitan compiles nothing and refuses graphs with a pipeline.
TEST(TrainerLaunch, SaysWhatThePredictionRestsOn) {
  const struct {
    const char* trainer;
    void (*change)(JobSpec&);
    std::vector<const char*> says;
    std::vector<const char*> not_says{};
  } cases[] = {
      {"megatron",
       [](JobSpec&) {},
       {"--bf16\n", "--overlap-grad-reduce\n", "--overlap-param-gather\n",
        "--global-batch-size 4\n"},
       {"--fp8", "--fp4", "--grad-reduce-in-bf16", "--moe", "--tp-comm-overlap",
        "selective", "CUDA_DEVICE"}},
      {"megatron-stock",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kNone;
         job.setup.recompute_attention = true;
       },
       {"--bf16\n", "--overlap-grad-reduce\n", "--global-batch-size 4\n",
        "--recompute-granularity selective\n--recompute-modules core_attn\n"},
       {"--overlap-param-gather"}},
      {"megatron",
       [](JobSpec& job) { job.setup.overlap = CommunicationOverlap::kNone; },
       {},
       {"overlap"}},
      {"megatron", [](JobSpec& job) { job.parallel.dp = 1; }, {}, {"overlap"}},
      {"megatron-stock",
       [](JobSpec&) {},
       {"# 4 bytes more for each logit"},
       {"\n--cross-entropy"}},
      {"megatron",
       [](JobSpec& job) { job.setup.fp32_loss = true; },
       {},
       {"cross-entropy", "logit"}},
      {"megatron",
       [](JobSpec& job) { job.setup.gathers_wait = true; },
       {"--overlap-grad-reduce\n"},
       {"--overlap-param-gather"}},
      {"megatron",
       [](JobSpec& job) {
         job.parallel.tp = 2;
         job.setup.overlap = CommunicationOverlap::kAll;
         job.setup.gradient_bytes = 2;
         job.setup.fp8_products = true;
       },
       {"--tp-comm-overlap\n", "--grad-reduce-in-bf16\n",
        "--fp8-format hybrid\n"}},
      {"megatron",
       [](JobSpec& job) {
         job.setup.fp8_products = true;
         job.setup.fp8_recipe = Fp8Recipe::kBlocks;
       },
       {"--fp8-format e4m3\n--fp8-recipe mxfp8\n"}},
      {"megatron",
       [](JobSpec& job) {
         job.setup.fp8_products = true;
         job.setup.fp8_recipe = Fp8Recipe::kFp4;
       },
       {"--fp4-format e2m1\n--fp4-recipe nvfp4\n"},
       {"--fp8"}},
      {"megatron",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.ep = 2;
       },
       {"--moe-grouped-gemm\n--moe-token-dispatcher-type alltoall\n"}},
      {"megatron-stock",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.ep = 2;
         job.setup.dispatch = ExpertDispatch::kEachGpu;
       },
       {"--moe-token-dispatcher-type flex\n"},
       {"alltoall"}},
      // Each GPU of context parallelism has two pieces, which tensor-parallel
      // GPUs divide.
      {"megatron",
       [](JobSpec& job) {
         job.training.microbatch_tokens = 3001;
         job.parallel.tp = 2;
         job.parallel.cp = 2;
       },
       {"# microbatch_tokens is 3001; the trainer wants a multiple of 8: "
        "padded\n",
        "--seq-length 3008\n"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.training.microbatch_tokens = 3001;
         job.parallel.tp = 2;
       },
       {"\"seq_len\": 3002,\n", "\"disable_cuda_graphs\": True,\n",
        "\"local_batch_size\": 2,\n", "\"global_batch_size\": 4,\n",
        "COMPILE = {\"enable\": True}\n", "RECOMPUTE = False\n"}},
      {"deepspeed", [](JobSpec&) {}, {"BF16 = {\"enabled\": True}\n"}},
      {"deepspeed",
       [](JobSpec& job) {
         for (ModuleSpec& module : job.model.modules) {
           module.precision = Precision::kFp32;
         }
       },
       {"BF16 = {\"enabled\": False}\n"}},
      {"torchtitan",
       [](JobSpec& job) { job.setup.eager_pointwise = true; },
       {"COMPILE = {\"enable\": False}\n"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.trainer, " ", &one - cases));
    ASSERT_OK_AND_ASSIGN(const std::string launch,
                         LaunchWith(one.trainer, one.change));
    for (const char* text : one.says) EXPECT_THAT(launch, HasSubstr(text));
    for (const char* text : one.not_says) {
      EXPECT_THAT(launch, Not(HasSubstr(text)));
    }
  }
}

// Settings that a trainer does not have.
TEST(TrainerJob, NamesDivisionsThatCannotBeSet) {
  const struct {
    const char* trainer;
    void (*change)(JobSpec&);
    std::vector<const char*> says;
  } cases[] = {
      {"megatron",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero2;
       },
       {"training.optimizer_sharding is OPTIMIZER_SHARDING_ZERO2",
        "OPTIMIZER_SHARDING_ZERO1 is right"}},
      {"megatron-stock",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero3;
       },
       {"OPTIMIZER_SHARDING_ZERO3;", "OPTIMIZER_SHARDING_ZERO1 is right"}},
      {"megatron",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero1;
         job.setup.broadcasts_weights = true;
       },
       {"setup.broadcasts_weights is true", "so false is right"}},
      {"megatron",
       [](JobSpec& job) {
         job.parallel.dp = 4;
         job.setup.optimizer_group = 3;
       },
       {"setup.optimizer_group is 3", "so 0 is right"}},
      {"megatron-stock",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.dp = 4;
         job.parallel.ep = 4;
         job.setup.optimizer_group = 2;
       },
       {"setup.optimizer_group is 2", "the 1 replicas of experts",
        "into 2 groups too, so 0 is right"}},
      {"megatron",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.tp = 2;
         job.setup.sequence_parallel = false;
       },
       {"setup.sequence_parallel is false", "so true is right"}},
      {"megatron",
       [](JobSpec& job) {
         job.parallel.tp = 2;
         job.setup.sequence_parallel = false;
         job.setup.scattered_sends = true;
       },
       {"setup.scattered_sends is true", "sends all", "so false is right"}},
      {"deepspeed",
       [](JobSpec& job) {
         job.parallel.tp = 2;
         job.setup.sequence_parallel = false;
       },
       {"setup.scattered_sends is false", "its part", "so true is right"}},
      {"torchtitan",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero2;
       },
       {"OPTIMIZER_SHARDING_ZERO2;",
        "OPTIMIZER_SHARDING_ZERO1 or OPTIMIZER_SHARDING_ZERO3 is right"}},
      {"torchtitan",
       [](JobSpec& job) { job.parallel.pp = 1; },
       {"OPTIMIZER_SHARDING_ZERO1;", "OPTIMIZER_SHARDING_ZERO3 is right"}},
      {"torchtitan",
       [](JobSpec& job) { job.parallel.cp = 2; },
       {"parallel.context_parallelism is CONTEXT_PARALLELISM_RING",
        "CONTEXT_PARALLELISM_ALL_GATHER is right"}},
      {"torchtitan",
       [](JobSpec& job) {
         AddExperts(job);
         job.parallel.tp = 2;
         job.parallel.ep = 2;
       },
       {"parallel.expert_tp is 0", "so 1 is right"}},
      {"torchtitan",
       [](JobSpec& job) {
         AddExperts(job);
         job.training.optimizer_sharding = OptimizerSharding::kNone;
         job.parallel.ep = 2;
       },
       {"parallel.ep is 2", "experts on 1 GPUs"}},
      {"deepspeed",
       [](JobSpec& job) {
         job.training.optimizer_sharding = OptimizerSharding::kZero2;
       },
       {"OPTIMIZER_SHARDING_ZERO2;", "OPTIMIZER_SHARDING_ZERO1 is right"}},
      {"deepspeed",
       [](JobSpec& job) { job.parallel.cp = 2; },
       {"parallel.cp is 2", "so 1 is right"}},
      {"deepspeed",
       [](JobSpec& job) { job.parallel.ep = 2; },
       {"parallel.ep is 2", "so 1 is right"}},
      {"deepspeed",
       [](JobSpec& job) { job.setup.optimizer_group = 1; },
       {"setup.optimizer_group is 1", "so 0 is right"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.trainer, " ", &one - cases));
    JobSpec job = SmallVlmJob();
    job.parallel.dp = 2;
    EXPECT_THAT(CheckTrainerJob(Trainer(one.trainer), job), IsOk());
    one.change(job);
    const absl::Status refused = CheckTrainerJob(Trainer(one.trainer), job);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    for (const char* text : one.says) {
      EXPECT_THAT(refused.message(), HasSubstr(text));
    }
    EXPECT_THAT(refused.message(), HasSubstr("--for pipeloom"));
    EXPECT_THAT(CheckTrainerJob(Trainer("torch"), job), IsOk());
  }
}

// Megatron-Core's hybrid models refuse a layout: their pattern has a symbol of
// each layer and the borders of stages.
TEST(TrainerLaunch, LayersOfOneBlockAreAHybridPattern) {
  RandomJobCase made{SmallVlmJob(),
                     ::pipeloom::testing::RandomBatch(3, 200, 2)};
  std::string symbols;
  for (LayerSpec& layer : made.job.model.modules[ModuleId(1)].layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    symbols += "M-*G"[symbols.size() % 4];
    if (symbols.back() != '-') layer.ffn = {};
    if (symbols.back() != '*') layer.attention = {};
    if (symbols.back() == 'M') {
      layer.state_space = {.heads = 16, .head_dim = 64, .state_dim = 128};
    } else if (symbols.back() == 'G') {
      layer.delta_net = {
          .key_heads = 4, .value_heads = 8, .key_dim = 128, .value_dim = 128};
    }
  }
  for (const absl::string_view name : {"megatron", "megatron-stock"}) {
    const TrainerLimits& trainer = Trainer(name);
    ASSERT_OK_AND_ASSIGN(const TrainerPlanned planned,
                         PlanForTrainer(trainer, made, 20));
    ASSERT_OK_AND_ASSIGN(const TrainerFile file,
                         ScheduleFileOf(trainer, planned.result.plan));
    ASSERT_OK_AND_ASSIGN(const std::string launch,
                         LaunchArguments(trainer, made.job, planned.partition,
                                         planned.recompute, file, "plan"));
    constexpr absl::string_view kPattern = "--hybrid-layer-pattern \"";
    EXPECT_THAT(launch, HasSubstr("Megatron-Core 0.17, their recomputation "
                                  "0.18\n--hybrid-layer-pattern"));
    const size_t at = launch.find(std::string(kPattern));
    ASSERT_NE(at, std::string::npos) << launch;
    const size_t begin = at + kPattern.size();
    std::string pattern = launch.substr(begin, launch.find('"', begin) - begin);
    EXPECT_EQ(std::count(pattern.begin(), pattern.end(), '|') + 1,
              planned.partition.num_ranks * planned.partition.num_segments);
    pattern.erase(std::remove(pattern.begin(), pattern.end(), '|'),
                  pattern.end());
    EXPECT_EQ(pattern, symbols);
    EXPECT_EQ(launch.find("--num-layers"), std::string::npos);
    EXPECT_EQ(launch.find("--pipeline-model-parallel-layout"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace pipeloom::adapters
