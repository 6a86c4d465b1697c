#include "emulator/stage/stage_cost.h"

#include <thread>
#include <vector>

#include "emulator/network/collective_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/support/small_job.h"

namespace pipeloom::emulator {
namespace {

std::vector<LayerSpec> Repeat(const LayerSpec& layer, int count) {
  return std::vector<LayerSpec>(static_cast<size_t>(count), layer);
}

// 8h + 2(a + 2k)d + 2ad + 4a + 6f = 139392 bytes a token.
TEST(StageCost, Llama3LayerKeeps34BytesAHiddenUnitAndToken) {
  const StageCostModel alone(JobOf({{Llama3Block()}}, {}));
  const StageCost cost = alone.Cost(StageOf(1), Sequences(1, 8192), true);
  EXPECT_EQ(cost.activations, Bytes(int64_t{139392} * 8192));
  EXPECT_EQ(139392 / 4096, 34);
  EXPECT_EQ(cost.input, Bytes(int64_t{8192} * 4096 * 2));
  EXPECT_EQ(cost.output, cost.input);
  EXPECT_EQ(cost.output_rows, 8192);
  EXPECT_EQ(cost.output_width, 4096);
  const StageCostModel split(JobOf({{Llama3Block()}}, {.tp = 4, .cp = 2}));
  EXPECT_EQ(split.Cost(StageOf(1), Sequences(1, 8192), true).activations,
            Bytes(int64_t{139392} * 8192 / 8));
}

// 16h + 4f = 90112 bytes a patch, and the log-sum-exp.
TEST(StageCost, Vit5bLayerKeepsItsWideFeedForward) {
  const StageCostModel model(JobOf({{Vit5bBlock()}}, {}));
  EXPECT_EQ(model.Cost(StageOf(1), Sequences(1, 2704), true).activations,
            Bytes(int64_t{90112 + 64} * 2704));
}

TEST(StageCost, StaticMemoryIs18BytesAParameterOnOneGpu) {
  const LayerSpec layer = Llama3Block();
  const int64_t n = Parameters(layer);
  const StageCostModel alone(JobOf({Repeat(layer, 4)}, {}));
  const StageMemory memory = alone.Memory(StageOf(4));
  EXPECT_EQ(memory.weights, Bytes(4 * n * 2));
  EXPECT_EQ(memory.gradients, Bytes(4 * n * 4));
  EXPECT_EQ(memory.optimizer, Bytes(4 * n * 12));
  const StageCostModel replicated(JobOf({Repeat(layer, 4)}, {.dp = 4}));
  EXPECT_EQ(replicated.Memory(StageOf(4)).optimizer, Bytes(4 * n * 3));
  JobSpec unsharded = JobOf({Repeat(layer, 4)}, {.dp = 4});
  unsharded.training.optimizer_sharding = OptimizerSharding::kNone;
  EXPECT_EQ(StageCostModel(unsharded).Memory(StageOf(4)).optimizer,
            memory.optimizer);
}

TEST(StageCost, TheOptimizersStateHasTheBytesOfTheSetup) {
  const LayerSpec layer = Llama3Block();
  JobSpec job = JobOf({{layer}}, {});
  job.setup.optimizer_bytes = 10;
  EXPECT_EQ(StageCostModel(job).Memory(StageOf(1)).optimizer,
            Bytes(10 * Parameters(layer)));
}

TEST(StageCost, ZeroStagesDivideOptimizerGradientsAndWeightsInTurn) {
  const LayerSpec layer = Llama3Block();
  const int64_t n = Parameters(layer);
  const auto memory = [&](OptimizerSharding sharding) {
    JobSpec job = JobOf({Repeat(layer, 4)}, {.dp = 4});
    job.training.optimizer_sharding = sharding;
    return StageCostModel(job).Memory(StageOf(4));
  };
  const StageMemory none = memory(OptimizerSharding::kNone);
  const StageMemory zero1 = memory(OptimizerSharding::kZero1);
  const StageMemory zero2 = memory(OptimizerSharding::kZero2);
  const StageMemory zero3 = memory(OptimizerSharding::kZero3);
  EXPECT_EQ(zero1.weights, none.weights);
  EXPECT_EQ(zero1.gradients, none.gradients);
  EXPECT_EQ(zero1.optimizer, Bytes(n * 12));
  EXPECT_EQ(zero2.weights, none.weights);
  // A quarter, and one layer's before they are reduced.
  EXPECT_EQ(zero2.gradients, Bytes(4 * n + 4 * n));
  EXPECT_EQ(zero2.optimizer, zero1.optimizer);
  // A quarter, and two layers gathered.
  EXPECT_EQ(zero3.weights, Bytes(2 * n + 2 * 2 * n));
  EXPECT_EQ(zero3.gradients, zero2.gradients);
  EXPECT_EQ(zero3.optimizer, zero1.optimizer);
}

TEST(StageCost, OnOneReplicaNothingIsSharded) {
  JobSpec job = JobOf({Repeat(Llama3Block(), 4)}, {.tp = 2});
  const auto costs = [&](OptimizerSharding sharding) {
    job.training.optimizer_sharding = sharding;
    return StageCostModel(job);
  };
  const StageCostModel none = costs(OptimizerSharding::kNone);
  const WorkShape shape = Sequences(1, 2048);
  const StageCost pass = none.Cost(StageOf(4), shape, true);
  for (const OptimizerSharding sharding :
       {OptimizerSharding::kZero1, OptimizerSharding::kZero2,
        OptimizerSharding::kZero3}) {
    const StageCostModel sharded = costs(sharding);
    EXPECT_EQ(sharded.Memory(StageOf(4)), none.Memory(StageOf(4)));
    const StageCost cost = sharded.Cost(StageOf(4), shape, true);
    EXPECT_EQ(cost.forward, pass.forward);
    EXPECT_EQ(cost.weight_grad, pass.weight_grad);
    EXPECT_EQ(cost.fused, pass.fused);
  }
}

// Input, Q, V, attention's output and log-sum-exp, gate: 2h + 2ad + 2kd + 2ad +
// 4a + 2f = 55424 bytes a token; the down product's result, too, if no compiler
// drops it; the scattered result of the output product under tp.
TEST(StageCost, CheckpointsByOperatorKeepEverySecondProduct) {
  const auto kept = [](const ParallelLayout& parallel, bool eager) {
    JobSpec job = JobOf({{Llama3Block()}}, parallel);
    job.setup.checkpoint_operators = true;
    job.setup.eager_pointwise = eager;
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 8192), true);
  };
  EXPECT_EQ(kept({}, false).activations, Bytes(int64_t{55424} * 8192));
  EXPECT_EQ(kept({}, true).activations, Bytes(int64_t{63616} * 8192));
  EXPECT_EQ(kept({.tp = 4}, false).activations,
            Bytes(int64_t{63616} * 8192 / 4));
  // The backward computes the products K, output and up again.
  const StageCostModel plain(JobOf({{Llama3Block()}}, {}));
  const StageCost all = plain.Cost(StageOf(1), Sequences(1, 8192), true);
  const StageCost some = kept({}, false);
  EXPECT_EQ(some.forward, all.forward);
  EXPECT_GT(some.fused, all.fused);
  EXPECT_LT(some.fused, all.fused + all.forward);
  // All but the kept part is there again while the layer's backward runs.
  EXPECT_EQ(some.activations + some.scratch.fused,
            all.activations + all.scratch.fused);
  // Layers with experts keep what they keep without it.
  JobSpec experts = JobOf({{MoeBlock()}}, {});
  const Bytes without = StageCostModel(experts)
                            .Cost(StageOf(1), Sequences(1, 512), true)
                            .activations;
  experts.setup.checkpoint_operators = true;
  EXPECT_EQ(StageCostModel(experts)
                .Cost(StageOf(1), Sequences(1, 512), true)
                .activations,
            without);
}

// 4 bytes a logit are kept, in place of the 2 of the fused loss. At the peak
// Megatron-Core has 2 more of the gradient, operators of PyTorch 8 of the
// gradients of log-softmax and logits; those of the head's product come later.
TEST(StageCost, AnFp32LossHolds6Or12BytesALogit) {
  const int64_t logits = 8192 * LossHeadLayer().vocab / 2;
  const auto scratch = [&](Framework framework, bool keeps_gathered) {
    JobSpec job = JobOf({{LossHeadLayer()}}, {.tp = 2});
    job.setup = SetupOf(framework);
    job.setup.keeps_gathered = keeps_gathered;
    job.setup.fp32_loss = false;
    const StageCost fused =
        StageCostModel(job).Cost(StageOf(1), Sequences(1, 8192), true);
    job.setup.fp32_loss = true;
    const StageCost fp32 =
        StageCostModel(job).Cost(StageOf(1), Sequences(1, 8192), true);
    EXPECT_EQ(fp32.activations - fused.activations, Bytes(2 * logits));
    EXPECT_LT(fused.scratch.fused, fp32.scratch.fused);
    return fp32.scratch.fused;
  };
  EXPECT_EQ(scratch(Framework::kMegatronCore, false), Bytes(2 * logits));
  EXPECT_EQ(scratch(Framework::kMegatronBridge, false), Bytes(2 * logits));
  EXPECT_EQ(scratch(Framework::kMegatronCore, true), Bytes(8 * logits));
  EXPECT_EQ(scratch(Framework::kPyTorch, false), Bytes(8 * logits));
}

TEST(StageCost, GatheredInAPipelineWeightsAndGradientsAreWhole) {
  const int64_t n = 4 * Parameters(Llama3Block());
  const auto memory = [&](int32_t pp) {
    JobSpec job = JobOf({Repeat(Llama3Block(), 8)}, {.pp = pp, .dp = 4});
    job.training.optimizer_sharding = OptimizerSharding::kZero3;
    job.setup.gathered_in_pipeline = true;
    return StageCostModel(job).Memory(StageOf(4));
  };
  // A quarter of 2 and 4 bytes for itself, and all of them.
  EXPECT_EQ(memory(2).weights, Bytes(n / 2 + 2 * n));
  EXPECT_EQ(memory(2).gradients, Bytes(n + 4 * n));
  // Without a pipeline, two layers' weights and one layer's gradients.
  EXPECT_EQ(memory(1).weights, Bytes(n / 2 + n));
  EXPECT_EQ(memory(1).gradients, Bytes(n + n));
}

TEST(StageCost, ShardsInFp32AreTheOptimizersAlone) {
  const int64_t n = 4 * Parameters(Llama3Block());
  JobSpec job = JobOf({Repeat(Llama3Block(), 8)}, {.dp = 4});
  const auto weights = [&](bool fp32_shards, OptimizerSharding sharding) {
    job.setup.fp32_shards = fp32_shards;
    job.training.optimizer_sharding = sharding;
    return StageCostModel(job).Memory(StageOf(4)).weights;
  };
  // A quarter of 2 bytes a parameter less; two layers are gathered as before.
  EXPECT_EQ(weights(false, OptimizerSharding::kZero3), Bytes(n / 2 + n));
  EXPECT_EQ(weights(true, OptimizerSharding::kZero3), Bytes(n));
  EXPECT_EQ(weights(true, OptimizerSharding::kZero2), Bytes(2 * n));
  // Frozen weights have no optimizer.
  job.training.frozen_modules = {"m0"};
  EXPECT_EQ(weights(true, OptimizerSharding::kZero3), Bytes(n / 2 + n));
}

TEST(StageCost, FullShardingMovesItsTrafficFromTheEpilogueToThePasses) {
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(1));
  // Few tokens: nothing to hide behind.
  const WorkShape shape = Sequences(1, 64);
  JobSpec job = JobOf({{Llama3Block()}}, {.dp = 8});
  const StageCostModel zero1(job);
  job.training.optimizer_sharding = OptimizerSharding::kZero3;
  const StageCostModel zero3(job);
  const Duration gather =
      RingCollectiveTime(2.0 * static_cast<double>(Parameters(Llama3Block())),
                         8, H800Cluster().intra_node);
  const StageCost plain = zero1.Cost(StageOf(1), shape, true);
  const StageCost sharded = zero3.Cost(StageOf(1), shape, true);
  // The gather runs at half its speed while it is overlapped with compute.
  const auto overlapped = [&](Duration pass) { return gather + pass / 2; };
  EXPECT_NEAR(ToSeconds(sharded.forward), ToSeconds(overlapped(plain.forward)),
              2e-9);
  EXPECT_NEAR(ToSeconds(sharded.backward),
              ToSeconds(overlapped(plain.backward)), 2e-9);
  EXPECT_GT(sharded.weight_grad, gather);
  // A recomputed forward needs no gather, as the weights are there.
  EXPECT_EQ(sharded.forward_again, plain.forward);
  EXPECT_LT(zero3.Updates(partition)[RankId(0)].total(),
            zero1.Updates(partition)[RankId(0)].total());
}

TEST(StageCost, PaddedBatchesPayForTheirLongestSequence) {
  WorkShape ragged = {.instances = 3,
                      .tokens = 1024 + 256 + 256,
                      .output_tokens = 1536,
                      .squared_tokens = 1024.0 * 1024 + 2 * 256 * 256,
                      .sequences = 3,
                      .longest = 1024};
  WorkShape full = Sequences(3, 1024);
  full.output_tokens = full.tokens;
  full.context_tokens = 0;
  full.context_pairs = 0;
  JobSpec job = JobOf({{Llama3Block()}}, {.tp = 2});
  const StageCost packed = StageCostModel(job).Cost(StageOf(1), ragged, true);
  job.training.batching = SequenceBatching::kPadded;
  const StageCostModel padding(job);
  StageCost padded = padding.Cost(StageOf(1), ragged, true);
  // Work on padding is no work of the model.
  EXPECT_EQ(padded.model_flops, packed.model_flops);
  const StageCost whole = padding.Cost(StageOf(1), full, true);
  EXPECT_LT(padded.model_flops.count, whole.model_flops.count);
  padded.model_flops = whole.model_flops;
  EXPECT_EQ(padded, whole);
  EXPECT_LT(2 * packed.activations, padded.activations + packed.activations);
  EXPECT_LT(packed.forward, padded.forward);
  // Equal lengths, or unknown ones, have no padding.
  EXPECT_EQ(full.Padded(), full);
}

TEST(StageCost, PrecisionOfAModuleSetsItsMemory) {
  const int64_t n = Parameters(Llama3Block());
  const WorkShape shape = Sequences(1, 1024);
  const auto job_in = [&](Precision precision) {
    JobSpec job = JobOf({{Llama3Block()}}, {});
    job.model.modules[ModuleId(0)].precision = precision;
    return job;
  };
  const StageCostModel bf16(job_in(Precision::kBf16));
  const StageCostModel fp8(job_in(Precision::kFp8));
  const StageCostModel fp32(job_in(Precision::kFp32));
  EXPECT_EQ(fp8.Memory(StageOf(1)).weights, Bytes(4 * n));
  EXPECT_EQ(fp32.Memory(StageOf(1)).weights, Bytes(4 * n));
  EXPECT_EQ(fp32.Memory(StageOf(1)).optimizer, Bytes(8 * n));
  const auto kept = [&](const StageCostModel& model) {
    return model.Cost(StageOf(1), shape, true).activations;
  };
  EXPECT_LT(kept(fp8), kept(bf16));
  EXPECT_EQ(fp32.Cost(StageOf(1), shape, true).output,
            2 * bf16.Cost(StageOf(1), shape, true).output);
  // All but the log-sum-exp doubles.
  EXPECT_EQ(kept(fp32), 2 * kept(bf16) - Bytes(int64_t{4} * 32 * 1024));
}

TEST(StageCost, OperatorCostsMayComeFromElsewhere) {
  class OneMicrosecond : public OpCostModel {
   public:
    Duration Cost(const Op&) const override { return Microseconds(1); }
  };
  const JobSpec job = JobOf({{Llama3Block()}}, {});
  const StageCostModel model(job, std::make_unique<OneMicrosecond>());
  const LayerOps ops = BuildLayerOps(Llama3Block(), Sequences(1, 512), {}, {});
  const StageCost cost = model.Cost(StageOf(1), Sequences(1, 512), true);
  EXPECT_EQ(cost.forward,
            static_cast<int64_t>(ops.forward.size()) * Microseconds(1));
  // Memory does not depend on the source of times.
  const StageCost roofline =
      StageCostModel(job).Cost(StageOf(1), Sequences(1, 512), true);
  EXPECT_EQ(cost.activations, roofline.activations);
  EXPECT_EQ(cost.model_flops, roofline.model_flops);
}

TEST(StageCost, OverheadHoldsOneUnusedGradientAShape) {
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(4));
  JobSpec job = JobOf({Repeat(Llama3Block(), 4)}, {});
  const RankOverhead trained =
      StageCostModel(job).Overhead(partition, RankId(0));
  EXPECT_EQ(trained.unused_gradients,
            Bytes(2 * MatrixParameters(Llama3Block())));
  EXPECT_GE(trained.context, kGibibyte);
  job.training.frozen_modules = {"m0"};
  const RankOverhead frozen =
      StageCostModel(job).Overhead(partition, RankId(0));
  EXPECT_EQ(frozen.unused_gradients, Bytes(0));
}

TEST(StageCost, TensorParallelismDividesMatricesAndExpertParallelismExperts) {
  LayerSpec layer = MoeBlock();
  const int64_t experts = 128 * 3 * 2048 * 768;
  const int64_t router = 128 * 2048;  // Whole on every GPU.
  const int64_t dense = MatrixParameters(layer) - experts - router;
  const StageCostModel model(JobOf({{layer}}, {.tp = 2, .ep = 4, .dp = 4}));
  EXPECT_EQ(
      model.Memory(StageOf(1)).weights,
      Bytes(2 * (dense / 2 + router + layer.vector_parameters + experts / 8)));
}

TEST(StageCost, ATiedHeadIsStoredOnceIfItsTableIsThere) {
  LayerSpec head = LossHeadLayer();
  head.tied = true;
  const StageCostModel model(JobOf({{EmbeddingLayer(), head}}, {}));
  const int64_t table = int64_t{4096} * 128256;
  EXPECT_EQ(model.Memory(StageOf(2)).weights, Bytes(2 * table));
  EXPECT_EQ(model.Memory(StageOf(1, 0, 0)).weights, Bytes(2 * table));
  EXPECT_EQ(model.Memory(StageOf(1, 0, 1)).weights, Bytes(2 * table));
}

TEST(StageCost, FrozenModulesHaveNoWeightGradientAndOnlyWeights) {
  JobSpec job = JobOf({Repeat(Vit5bBlock(), 2), Repeat(Llama3Block(), 2)}, {});
  job.training.frozen_modules = {"m0"};
  const StageCostModel model(job);
  const WorkShape shape = Sequences(4, 1024);
  const StageCost still = model.Cost(StageOf(2, 0), shape, false);
  EXPECT_GT(still.forward, kZero);
  EXPECT_EQ(still.backward, kZero);
  EXPECT_EQ(still.weight_grad, kZero);
  const StageCost passing = model.Cost(StageOf(2, 0), shape, true);
  EXPECT_GT(passing.backward, kZero);
  EXPECT_EQ(passing.weight_grad, kZero);
  EXPECT_EQ(passing.freed_by_backward, passing.activations);
  EXPECT_EQ(passing.forward, still.forward);
  EXPECT_DOUBLE_EQ(passing.model_flops.count, 2 * still.model_flops.count);
  const StageMemory memory = model.Memory(StageOf(2, 0));
  EXPECT_GT(memory.weights, Bytes(0));
  EXPECT_EQ(memory.gradients, Bytes(0));
  EXPECT_EQ(memory.optimizer, Bytes(0));

  job.training.frozen_modules.clear();
  const StageCost trained =
      StageCostModel(job).Cost(StageOf(2, 0), shape, true);
  EXPECT_GT(trained.weight_grad, kZero);
  EXPECT_GT(trained.activations, passing.activations);
  EXPECT_LT(trained.freed_by_backward, trained.activations);
  EXPECT_DOUBLE_EQ(trained.model_flops.count, 3 * still.model_flops.count);
}

TEST(StageCost, EqualLayersArePricedOnceAndReuseChangesNothing) {
  const JobSpec job = JobOf({Repeat(Llama3Block(), 32)}, {.tp = 4});
  const StageCostModel cached(job);
  const StageCostModel fresh(job, PriceReuse::kOff);
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const int64_t length : {512, 1024, 4096}) {
      EXPECT_EQ(cached.Cost(StageOf(16, 0, 16), Sequences(2, length), true),
                fresh.Cost(StageOf(16, 0, 16), Sequences(2, length), true));
    }
  }
  EXPECT_EQ(cached.cache().misses, 3);
  EXPECT_EQ(cached.cache().hits, 9 * 16 - 3);
  EXPECT_EQ(fresh.cache().hits, 0);
  EXPECT_EQ(fresh.cache().misses, 9 * 16);
}

// Stages of [embedding, 2 layers], three times 2 layers, and 2 layers that end
// the module: those in the middle share a slot. Without the first stage, the
// first of them has nothing trained below it, which counts unless the module is
// frozen.
TEST(StageCost, StagesOfARowThatCostTheSameShareASlot) {
  std::vector<LayerSpec> layers = {EmbeddingLayer()};
  for (int i = 0; i < 10; ++i) layers.push_back(Llama3Block());
  JobSpec job = JobOf({layers}, {.pp = 5});
  std::vector<Stage> stages;
  for (int32_t s = 0; s < 5; ++s) {
    stages.push_back(StageOf(s == 0 ? 3 : 2, 0, s == 0 ? 0 : 1 + 2 * s));
    stages.back().rank = RankId(s);
  }
  for (const bool frozen : {false, true}) {
    if (frozen) job.training.frozen_modules = {"m0"};
    const StageCostModel costs(job);
    const StageRow row = costs.Row(stages);
    EXPECT_EQ(row.slot_of, (std::vector<int32_t>{0, 1, 1, 1, 2}));
    const StageRow middle = costs.Row(absl::MakeSpan(stages).subspan(1, 3));
    EXPECT_EQ(middle.slot_of, frozen ? (std::vector<int32_t>{0, 0, 0})
                                     : (std::vector<int32_t>{0, 1, 1}));
    for (const bool fed : {false, true}) {
      const WorkShape shape = Sequences(2, 512);
      const std::vector<StageCost> slots = costs.PriceSlots(row, shape, fed);
      ASSERT_EQ(slots.size(), 3u);
      EXPECT_EQ(*costs.Costs(row, shape, fed), slots);
      const StageCostModel fresh(job, PriceReuse::kOff);
      for (size_t s = 0; s < 5; ++s) {
        EXPECT_EQ(slots[static_cast<size_t>(row.slot_of[s])],
                  fresh.Cost(stages[s], shape, fed || (s > 0 && !frozen)))
            << s;
      }
    }
    // Without reuse each stage is priced by itself.
    const StageCostModel fresh(job, PriceReuse::kOff);
    EXPECT_EQ(fresh.Row(stages).of_slot.size(), 5u);
  }
}

TEST(StageCost, StagesOnSlowOrOtherGpusShareNoSlot) {
  JobSpec job = JobOf({Repeat(Llama3Block(), 6)}, {.pp = 6});
  job.cluster.slow_gpus = {{.gpu = 2, .factor = 1.5}};
  std::vector<Stage> stages;
  for (int32_t s = 0; s < 6; ++s) {
    stages.push_back(StageOf(1, 0, s));
    stages.back().rank = RankId(s);
  }
  const StageCostModel costs(job);
  const StageRow row = costs.Row(stages);
  // The first has nothing below it, the last hands on to other modules.
  EXPECT_EQ(row.slot_of, (std::vector<int32_t>{0, 1, 2, 1, 1, 3}));
  const std::vector<StageCost> slots =
      costs.PriceSlots(row, Sequences(1, 512), true);
  EXPECT_GT(slots[2].forward, slots[1].forward);
}

TEST(StageCost, ReuseChangesNothingForAnyLayerKindOrThread) {
  const std::vector<LayerSpec> layers = EveryLayerKind();
  const auto count = static_cast<int32_t>(layers.size());
  JobSpec job = JobOf({layers, layers}, {.tp = 2, .cp = 2});
  job.training.frozen_modules = {"m1"};
  const StageCostModel cached(job);
  const StageCostModel fresh(job, PriceReuse::kOff);
  std::vector<std::thread> threads;
  std::vector<int> differences(4, 0);
  for (size_t k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      for (const int32_t module : {0, 1}) {
        for (const bool input : {false, true}) {
          for (const int64_t length : {16, 100, 1000}) {
            const Stage stage = StageOf(count, module);
            const WorkShape shape = Sequences(3, length);
            differences[k] += cached.Cost(stage, shape, input) !=
                              fresh.Cost(stage, shape, input);
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, std::vector<int>(4, 0));
}

TEST(StageCost, EveryLayerKindHasPositiveFiniteCosts) {
  const std::vector<LayerSpec> layers = EveryLayerKind();
  for (const ParallelLayout& parallel :
       {ParallelLayout{}, ParallelLayout{.tp = 4},
        ParallelLayout{.tp = 2, .cp = 2, .ep = 4, .dp = 2}}) {
    const StageCostModel model(JobOf({layers}, parallel));
    for (int32_t i = 0; i < static_cast<int32_t>(layers.size()); ++i) {
      const StageCost cost =
          model.Cost(StageOf(1, 0, i), Sequences(2, 1024), true);
      EXPECT_GT(cost.forward, kZero) << i;
      EXPECT_LT(cost.forward, Seconds(10)) << i;
      EXPECT_GT(cost.weight_grad, kZero) << i;
      if (layers[static_cast<size_t>(i)].kind != LayerKind::kEmbedding) {
        EXPECT_GT(cost.backward, kZero) << i;
        EXPECT_GT(cost.model_flops.count, 0) << i;
      }
      EXPECT_GT(cost.activations, Bytes(0)) << i;
      EXPECT_GE(cost.freed_by_backward, Bytes(0)) << i;
      EXPECT_LE(cost.freed_by_backward, cost.activations) << i;
      EXPECT_LE(cost.input, cost.activations) << i;
      EXPECT_GT(model.Memory(StageOf(1, 0, i)).weights, Bytes(0)) << i;
    }
  }
}

TEST(StageCost, MoreTokensNeverCostLess) {
  const std::vector<LayerSpec> layers = EveryLayerKind();
  const StageCostModel model(
      JobOf({layers}, {.tp = 2, .cp = 2, .ep = 4, .dp = 2}));
  for (int32_t i = 0; i < static_cast<int32_t>(layers.size()); ++i) {
    StageCost last{};
    // Within and beyond one tile, wave and latency regime.
    for (int64_t sequences = 1; sequences <= 64; ++sequences) {
      const StageCost cost =
          model.Cost(StageOf(1, 0, i), Sequences(sequences, 96), true);
      EXPECT_GE(cost.forward, last.forward) << i << " at " << sequences;
      EXPECT_GE(cost.backward, last.backward) << i << " at " << sequences;
      EXPECT_GE(cost.weight_grad, last.weight_grad) << i << " at " << sequences;
      EXPECT_GE(cost.activations, last.activations) << i << " at " << sequences;
      last = cost;
    }
  }
}

TEST(StageCost, StagesAddUpToTheirModule) {
  const StageCostModel model(testing::SmallVlmJob());
  const WorkShape shape = Sequences(2, 1024);
  const StageCost whole = model.Cost(StageOf(10, 1), shape, true);
  const StageCost a = model.Cost(StageOf(4, 1, 0), shape, true);
  const StageCost b = model.Cost(StageOf(6, 1, 4), shape, true);
  EXPECT_EQ(a.forward + b.forward, whole.forward);
  EXPECT_EQ(a.backward + b.backward, whole.backward);
  EXPECT_EQ(a.weight_grad + b.weight_grad, whole.weight_grad);
  EXPECT_EQ(a.activations + b.activations, whole.activations);
  EXPECT_EQ(a.output, whole.output);
}

TEST(StageCost, ProjectorsWorkOnAndHandOnOutputTokens) {
  const StageCostModel model(
      JobOf({{Vit5bBlock(), ProjectorLayer()}}, {.tp = 2}));
  const WorkShape shape = Sequences(2, 1024);
  const StageCost cost = model.Cost(StageOf(2), shape, false);
  EXPECT_EQ(cost.output_rows, shape.output_tokens);
  EXPECT_EQ(cost.output_width, 4096);
  EXPECT_EQ(cost.output, Bytes(shape.output_tokens * 4096 * 2 / 2));
  EXPECT_EQ(model.Cost(StageOf(1, 0, 1), shape, true).input,
            Bytes(shape.output_tokens * 7168 * 2 / 2));
}

TEST(StageCost, AnUpdateIsTheOptimizerAndTwoRingCollectives) {
  const LayerSpec layer = Llama3Block();
  const auto n = static_cast<double>(Parameters(layer));
  Partition partition;
  partition.num_ranks = 2;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(1));
  const auto update = [&](const ParallelLayout& parallel, int32_t rank,
                          CommunicationOverlap overlap =
                              CommunicationOverlap::kNone) {
    JobSpec job = JobOf({{layer}}, parallel);
    job.setup.overlap = overlap;
    return StageCostModel(job).Updates(partition)[RankId(rank)];
  };
  const double traffic = n * 40 / (3.35e12 * 0.8);
  EXPECT_NEAR(ToSeconds(update({}, 0).total()), traffic, 1e-8);
  const ParallelLayout wide{.pp = 2, .dp = 8};
  // Four of the eight are on a node, each with its card.
  LinkSpec link = H800Cluster().inter_node;
  link.bandwidth.bytes_per_second *= 4;
  EXPECT_NEAR(ToSeconds(update(wide, 0).reduce),
              ToSeconds(RingCollectiveTime(4 * n, 8, link)), 1e-8);
  EXPECT_NEAR(ToSeconds(update(wide, 0).gather),
              ToSeconds(RingCollectiveTime(2 * n, 8, link)), 1e-8);
  // All GPUs clear the gradients as a whole.
  const double cleared = n * 4 * 7 / 8 / (3.35e12 * 0.8);
  EXPECT_NEAR(ToSeconds(update(wide, 0).optimizer), traffic / 8 + cleared,
              1e-8);
  // Buckets of 40 million parameters each have to start.
  const RankUpdate bucketed = update(wide, 0, CommunicationOverlap::kData);
  EXPECT_EQ(bucketed.parts[0].buckets, 6);
  EXPECT_NEAR(ToSeconds(bucketed.reduce - update(wide, 0).reduce),
              5 * ToSeconds(RingCollectiveTime(1024, 8, link)), 1e-8);
  EXPECT_EQ(update(wide, 1), RankUpdate());  // No stage there.
  JobSpec frozen = JobOf({{layer}}, wide);
  frozen.training.frozen_modules = {"m0"};
  EXPECT_EQ(StageCostModel(frozen).Updates(partition)[RankId(0)], RankUpdate());
}

TEST(StageCost, TransfersUseTheLinkBetweenTheirRanks) {
  // Ranks of 4 GPUs: 0 and 1 share a node, 1 and 2 do not.
  const StageCostModel model(JobOf({{Llama3Block()}}, {.tp = 4, .pp = 4}));
  const auto inside =
      model.TransferTime(RankId(0), RankId(1), Bytes(160'000'000));
  EXPECT_EQ(inside.occupancy, Milliseconds(1));
  EXPECT_EQ(inside.time, Microseconds(1005));
  const auto outside =
      model.TransferTime(RankId(1), RankId(2), Bytes(22'000'000));
  EXPECT_EQ(outside.occupancy, Milliseconds(1));
  EXPECT_EQ(outside.time, Microseconds(1010));
  EXPECT_EQ(model.TransferTime(RankId(1), RankId(1), Bytes(1)).time, kZero);
}

}  // namespace
}  // namespace pipeloom::emulator
