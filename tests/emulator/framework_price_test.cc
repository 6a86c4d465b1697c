// Effects of a job's framework on a stage's time and memory.
#include "emulator/framework/framework_price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "emulator/cost/profile_cost.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/stage/rank_update.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

StageCost CostWith(const TrainingSetup& setup, const ParallelLayout& parallel,
                   int64_t tokens = 4096, double bf16 = 989e12) {
  JobSpec job = JobOf({{Llama3Block(), Llama3Block()}}, parallel);
  job.cluster.device.bf16 = {bf16};
  job.cluster.device.fp8 = {1.979e15};
  job.setup = setup;
  return StageCostModel(job).Cost(StageOf(2), Sequences(1, tokens), true);
}

TEST(FrameworkPrice,
     WithoutOverlapNoPassIsShorterAndNothingHidesCommunication) {
  const ParallelLayout wide{.tp = 4};
  TrainingSetup waits;
  waits.overlap = CommunicationOverlap::kNone;
  TrainingSetup hides;
  hides.overlap = CommunicationOverlap::kAll;
  const StageCost none = CostWith(waits, wide);
  const StageCost data = CostWith({}, wide);
  const StageCost all = CostWith(hides, wide);
  EXPECT_EQ(none.forward, data.forward);
  EXPECT_GT(none.fused, data.fused);
  // A framework that waits for every collective runs no weight gradient during
  // one.
  EXPECT_EQ(none.backward_gap, kZero);
  EXPECT_EQ(none.fused_gap, kZero);
  EXPECT_GT(data.backward_gap, kZero);
  EXPECT_LT(all.forward, data.forward);
  EXPECT_LT(all.backward, data.backward);
  for (const StageCost& cost : {none, data, all}) {
    EXPECT_LE(cost.backward_gap, cost.backward);
    EXPECT_LE(cost.fused_gap, cost.fused);
  }
}

TEST(FrameworkPrice, EagerKernelsCostTheirTrafficInForwardAndInputGradient) {
  TrainingSetup eager;
  eager.eager_pointwise = true;
  const StageCost fused = CostWith({}, {});
  const StageCost slow = CostWith(eager, {});
  // Two layers, 4096 tokens of 4096 elements, 8 and 16 bytes each.
  const double second_bytes = 3.35e12 * 0.8;
  const double element = 2.0 * 4096 * 4096 / second_bytes;
  EXPECT_NEAR(ToSeconds(slow.forward - fused.forward), 8 * element, 1e-8);
  EXPECT_NEAR(ToSeconds(slow.backward - fused.backward), 16 * element, 1e-8);
  EXPECT_NEAR(ToSeconds(slow.fused - fused.fused), 16 * element, 1e-8);
  EXPECT_EQ(slow.weight_grad, fused.weight_grad);
}

TEST(FrameworkPrice, XlasKernelsMoveMoreAndHalfOfThatWhateverTpIs) {
  TrainingSetup xla;
  xla.xla_pointwise = true;
  const double second_bytes = 3.35e12 * 0.8;
  for (const int32_t tp : {1, 4}) {
    const StageCost fused = CostWith({}, {.tp = tp});
    const StageCost slow = CostWith(xla, {.tp = tp});
    // Two layers, 4096 tokens of 4096 elements, 140 and 280 bytes each.
    const double element =
        2.0 * 4096 * 4096 * (1 + 1.0 / tp) / 2 / second_bytes;
    EXPECT_NEAR(ToSeconds(slow.forward - fused.forward), 140 * element, 1e-8);
    EXPECT_NEAR(ToSeconds(slow.backward - fused.backward), 280 * element, 1e-8);
  }
}

// A Llama block of 4096 wide tokens, 32 and 8 heads of 128, 14336 gated.
TEST(FrameworkPrice, PlainPyTorchRunsNormsAndRotationOperationByOperation) {
  TrainingSetup eager = SetupOf(Framework::kPyTorch);
  eager.host_per_kernel = kZero;
  TrainingSetup fused = eager;
  fused.eager_pointwise = false;
  const StageCost slow = CostWith(eager, {});
  const StageCost fast = CostWith(fused, {});
  const double second_bytes = 3.35e12 * 0.8;
  const double strided_bytes = 7.5 * 989.5e12 / 4096;
  const double tokens = 2.0 * 4096;
  const double rotated = 40 * 128;
  const double heads = 32 * 128;
  EXPECT_NEAR(ToSeconds(slow.forward - fast.forward),
              tokens * ((28 * 4096 + 9 * heads + 4 * 14336) / second_bytes +
                        (36 * 4096 + 20 * rotated) / strided_bytes),
              1e-6);
  EXPECT_NEAR(
      ToSeconds(slow.backward - fast.backward),
      tokens * (((132 + 18) * 4096 + 9 * heads + 8 * 14336) / second_bytes +
                (36 * 4096 + 28 * rotated) / strided_bytes),
      1e-6);
}

// Bytes a logit in addition to those of a fused loss: counted in the code of
// Megatron-Core and of PyTorch.
TEST(FrameworkPrice, ALossInFp32HasKernelsOfItsOwn) {
  const auto cost = [](Framework framework, bool fp32) {
    JobSpec job = JobOf({{LossHeadLayer()}}, {});
    job.cluster.device.fp8 = {1.979e15};
    job.setup = SetupOf(framework);
    job.setup.fp32_loss = fp32;
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 4096), true);
  };
  const double logit =
      4096.0 * static_cast<double>(LossHeadLayer().vocab) / (3.35e12 * 0.8);
  // The fp32 copy and what a broadcast operand changes: 7.5 bytes a cycle.
  const double strided = logit * 3.35e12 * 0.8 / (7.5 * 989e12 / 4096);
  for (const auto& [framework, forward, backward] :
       {std::tuple(Framework::kMegatronCore, 8 * logit + 22 * strided,
                   8 * strided),
        std::tuple(Framework::kTorchTitan, 14 * logit, 28 * logit)}) {
    const StageCost fused = cost(framework, false);
    const StageCost apart = cost(framework, true);
    EXPECT_NEAR(ToSeconds(apart.forward - fused.forward), forward, 1e-8);
    EXPECT_NEAR(ToSeconds(apart.backward - fused.backward), backward, 1e-8);
  }
}

// A million tokens at half the resolution: 262,144 positions, 320 and 640
// channels in, twice 640 out.
TEST(FrameworkPrice, PlainPyTorchRunsConvolutionsOperatorByOperator) {
  const auto cost = [](bool eager, double host_us) {
    JobSpec job = JobOf({{ConvolutionLayer()}}, {});
    job.setup = SetupOf(Framework::kPyTorch);
    job.setup.eager_pointwise = eager;
    job.setup.host_per_kernel = Microseconds(host_us);
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 1 << 20), true);
  };
  const double second_bytes = 3.35e12 * 0.8;
  const StageCost slow = cost(true, 0);
  const StageCost fast = cost(false, 0);
  EXPECT_NEAR(ToSeconds(slow.forward - fast.forward),
              262144.0 * (28 * (320 + 640) + 7 * 1280) / second_bytes, 1e-8);
  EXPECT_NEAR(ToSeconds(slow.backward - fast.backward),
              262144.0 * (40 * (320 + 640) + 6 * 1280) / second_bytes, 1e-8);
  // Two convolutions of eleven kernels.
  EXPECT_NEAR(ToSeconds(cost(true, 10000).forward), 220e-3, 1e-5);
  EXPECT_EQ(cost(false, 10000).forward, fast.forward);
}

TEST(FrameworkPrice, TorchtitanCastsOperandsOfFp8InKernelsOfTheirOwn) {
  TrainingSetup titan;
  titan.fp8_products = true;
  TrainingSetup fused = titan;
  titan.framework = Framework::kTorchTitan;
  const StageCost slow = CostWith(titan, {});
  const StageCost fast = CostWith(fused, {});
  const double second_bytes = 3.35e12 * 0.8;
  // Inputs of the products of queries, keys and values, output, gate and input,
  // and down: 5 bytes an element.
  const double inputs = 3 * 4096 + 14336;
  EXPECT_NEAR(ToSeconds(slow.forward - fast.forward),
              2.0 * 4096 * 5 * inputs / second_bytes, 2e-8);
  // Both operands of every weight gradient are turned.
  const double widths = 4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096;
  EXPECT_NEAR(ToSeconds(slow.weight_grad - fast.weight_grad),
              2.0 * 4096 * 2 * widths / second_bytes, 2e-8);
}

TEST(FrameworkPrice, AttentionMadeForOlderDevicesOrUnfusedIsSlower) {
  Duration last = CostWith({}, {}).forward;
  for (const AttentionKernel kernel :
       {AttentionKernel::kFlash2, AttentionKernel::kFlash1,
        AttentionKernel::kEfficient}) {
    TrainingSetup setup;
    setup.attention = kernel;
    const Duration time = CostWith(setup, {}).forward;
    EXPECT_GT(time, last);
    last = time;
  }
  TrainingSetup unfused;
  unfused.attention = AttentionKernel::kUnfused;
  EXPECT_GT(CostWith(unfused, {}).forward, CostWith({}, {}).forward);
  // Scores of 32 heads, 5 bytes each, are kept for the backward.
  EXPECT_EQ(CostWith(unfused, {}).activations - CostWith({}, {}).activations,
            Bytes(int64_t{2} * 5 * 32 * 4096 * 4096));
}

// A Llama block of 4096 wide tokens, 32 and 8 heads of 128, 14336 gated.
TEST(FrameworkPrice, PyTorchKeepsActivatedGatesAndWhatItHasGathered) {
  TrainingSetup megatron;
  megatron.eager_pointwise = true;
  TrainingSetup operators = megatron;
  operators.keeps_gathered = true;
  TrainingSetup pytorch = SetupOf(Framework::kPyTorch);
  TrainingSetup compiled = pytorch;
  compiled.eager_pointwise = false;
  const auto bytes = [](const TrainingSetup& setup, int32_t tp) {
    return CostWith(setup, {.tp = tp}).activations;
  };
  for (const int32_t tp : {1, 2}) {
    // Two layers; the activated gate and, where one product makes all three,
    // rotated queries and keys. In plain PyTorch the norms of both blocks keep
    // their input in fp32 in place of 16 bits, and what they multiply with the
    // weight, on every GPU.
    EXPECT_EQ(
        bytes(pytorch, tp) - bytes(compiled, tp),
        Bytes(int64_t{2} * 4096 * (2 * 14336 / tp + 2 * (4 - 2 + 2) * 4096)));
    const int64_t gathered = int64_t{2} * 4 * 4096 * 4096 * (tp - 1) / tp;
    EXPECT_EQ(
        bytes(operators, tp) - bytes(megatron, tp),
        Bytes(int64_t{2} * 2 * 4096 * (14336 + 40 * 128) / tp + gathered));
    EXPECT_EQ(bytes(megatron, tp), bytes({}, tp));
  }
  TrainingSetup keeps;
  keeps.keeps_gathered = true;
  EXPECT_EQ(bytes(keeps, 1), bytes({}, 1));
  const StageCost whole = CostWith(keeps, {.tp = 4});
  const StageCost parts = CostWith({}, {.tp = 4});
  // Three quarters of the inputs of two blocks are those of the other GPUs,
  // kept until the weight gradient.
  EXPECT_EQ(whole.activations - parts.activations,
            Bytes(int64_t{2} * 2 * 2 * 4096 * 4096 * 3 / 4));
  EXPECT_EQ(whole.freed_by_backward, parts.freed_by_backward);
  EXPECT_EQ(whole.forward, parts.forward);
}

TEST(FrameworkPrice, WithoutSequenceParallelismNothingIsGatheredAgain) {
  TrainingSetup setup;
  setup.sequence_parallel = false;
  const StageCost whole = CostWith(setup, {.tp = 4});
  const StageCost parts = CostWith({}, {.tp = 4});
  EXPECT_GT(whole.forward, parts.forward);
  EXPECT_LE(whole.weight_grad, parts.weight_grad);
  EXPECT_EQ(whole.fused, whole.backward + whole.weight_grad);
  EXPECT_GT(whole.activations, parts.activations);
  EXPECT_EQ(whole.input.count(), 4 * parts.input.count());
  // On one GPU there is no sequence to divide.
  EXPECT_EQ(CostWith(setup, {}).forward, CostWith({}, {}).forward);
  EXPECT_EQ(CostWith(setup, {}).activations, CostWith({}, {}).activations);
}

TEST(FrameworkPrice, WithoutSequenceParallelismEveryGpuModulatesAllTokens) {
  TrainingSetup setup;
  setup.sequence_parallel = false;
  LayerSpec modulated = Llama3Block();
  modulated.modulation = {.vectors = 6};  // From a table: no product.
  const auto forward = [&](const LayerSpec& layer, int32_t tp) {
    JobSpec job = JobOf({{layer}}, {.tp = tp});
    job.setup = setup;
    return ToSeconds(
        StageCostModel(job).Cost(StageOf(1), Sequences(1, 4096), true).forward);
  };
  const double one = forward(modulated, 1) - forward(Llama3Block(), 1);
  EXPECT_GT(one, 0);
  EXPECT_NEAR(forward(modulated, 4) - forward(Llama3Block(), 4), one,
              0.01 * one);
}

TEST(FrameworkPrice, ProductsThatKeepTheirPrecisionGainNothingFromFp8) {
  JobSpec job = JobOf({{Llama3Block()}}, {});
  job.cluster.device.fp8 = {1.979e15};
  job.setup.fp8_products = true;
  const RooflineCost costs(job.cluster, job.parallel);
  const LayerSpec layer = Llama3Block();
  const WorkShape shape = Sequences(1, 4096);
  const FrameworkPrices prices(layer, shape, job.parallel, job.setup,
                               job.cluster, job.cluster.device, costs);
  GemmOp op{.m = 4096, .n = 4096, .k = 4096};
  const Duration low = prices.Cost(op);
  op.keeps_precision = true;
  EXPECT_EQ(prices.Cost(op), costs.Cost(op));
  EXPECT_LT(low, prices.Cost(op));
}

TEST(FrameworkPrice, LaunchesAreALeastTimeOfAPassAndVanishBehindLongOnes) {
  TrainingSetup setup;
  setup.host_per_kernel = Microseconds(30);
  const StageCost small = CostWith(setup, {}, 64);
  EXPECT_GE(small.forward, 2 * 25 * Microseconds(30));
  EXPECT_GE(small.fused, 2 * 50 * Microseconds(30));
  const StageCost large = CostWith(setup, {}, 65536);
  const StageCost free = CostWith({}, {}, 65536);
  EXPECT_GE(large.forward, free.forward);
  EXPECT_LT(ToSeconds(large.forward), 1.001 * ToSeconds(free.forward));
}

TEST(FrameworkPrice, Fp8ProductsStretchAndRecomputedAttentionDoWhatTheySay) {
  TrainingSetup fp8;
  fp8.fp8_products = true;
  EXPECT_LT(CostWith(fp8, {}).forward, CostWith({}, {}).forward);
  TrainingSetup twice;
  twice.stretch = 2;
  EXPECT_EQ(CostWith(twice, {}).forward, 2 * CostWith({}, {}).forward);
  EXPECT_EQ(CostWith(twice, {}).backward_gap,
            2 * CostWith({}, {}).backward_gap);
  TrainingSetup again;
  again.recompute_attention = true;
  const StageCost made_again = CostWith(again, {});
  const StageCost kept = CostWith({}, {});
  EXPECT_LT(made_again.activations, kept.activations);
  EXPECT_EQ(made_again.fused - kept.fused, made_again.backward - kept.backward);
  EXPECT_GT(made_again.fused, kept.fused);
  EXPECT_LT(made_again.fused - kept.fused, kept.forward);
}

TEST(FrameworkPrice, FromBlackwellOnLowPrecisionGainsWithTheInnerDimension) {
  const LayerSpec layer = Llama3Block();
  const WorkShape shape = Sequences(1, 8192);
  const ParallelLayout parallel;
  ClusterSpec cluster = H800Cluster();
  cluster.device.bf16 = {2.5e15};
  cluster.device.fp8 = {5e15};
  const RooflineCost costs(cluster, parallel);
  const auto seconds = [&](double k, const TrainingSetup& setup,
                           QueryPass pass) {
    return ToSeconds(
        FrameworkPrices(layer, shape, parallel, setup, cluster, cluster.device,
                        costs)
            .Cost(GemmOp{.m = 8192, .n = 8192, .k = k, .pass = pass}));
  };
  TrainingSetup fp8;
  fp8.fp8_products = true;
  TrainingSetup blocks = fp8;
  blocks.fp8_recipe = Fp8Recipe::kBlocks;
  TrainingSetup fp4 = fp8;
  fp4.fp8_recipe = Fp8Recipe::kFp4;
  const QueryPass forward = QueryPass::kForward;
  for (const double k : {2400.0, 16384.0}) {
    const double bf16 = seconds(k, {}, forward);
    EXPECT_NEAR(seconds(k, fp8, forward), bf16 * (k + 1200) / (2 * k), 1e-8);
    // An operand is cast once, for its forward and its weight gradient.
    EXPECT_NEAR(seconds(k, blocks, forward) - seconds(k, fp8, forward),
                4 * 8192 * k / (3.35e12 * 0.8), 1e-8);
    EXPECT_EQ(seconds(k, blocks, QueryPass::kWeightGrad),
              seconds(k, fp8, QueryPass::kWeightGrad));
    EXPECT_LT(seconds(k, fp4, QueryPass::kWeightGrad),
              seconds(k, fp8, QueryPass::kWeightGrad));
  }
  // A short inner dimension gains nothing and loses nothing.
  EXPECT_EQ(seconds(256, fp8, forward), seconds(256, {}, forward));
}

TEST(FrameworkPrice, TransfersBlockOnlyWhereNothingOverlaps) {
  JobSpec job = JobOf({{Llama3Block()}}, {.pp = 2});
  EXPECT_FALSE(StageCostModel(job).Links().blocking_sends);
  job.setup.overlap = CommunicationOverlap::kNone;
  EXPECT_TRUE(StageCostModel(job).Links().blocking_sends);
}

TEST(FrameworkPrice,
     Fp8AttentionShortensAttentionFromBlackwellOnWithFp8Products) {
  JobSpec job = JobOf({{Llama3Block()}}, {});
  job.cluster.device.fp8 = {5e15};
  const auto cost = [&](bool products, bool attention, double rate) {
    job.cluster.device.bf16 = {rate};
    job.setup.fp8_products = products;
    job.setup.fp8_attention = attention;
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 32768), true);
  };
  const StageCost both = cost(true, true, 2.5e15);
  const StageCost products = cost(true, false, 2.5e15);
  EXPECT_LT(both.forward, products.forward);
  EXPECT_LT(both.backward, products.backward);
  EXPECT_EQ(both.weight_grad, products.weight_grad);
  EXPECT_EQ(cost(false, true, 2.5e15).forward,
            cost(false, false, 2.5e15).forward);
  EXPECT_EQ(cost(true, true, 1e15).forward, cost(true, false, 1e15).forward);
}

TEST(FrameworkPrice, GathersOfOneByteTakeLessAndScattersTheSame) {
  TrainingSetup setup;
  setup.fp8_products = true;
  const StageCost wide = CostWith(setup, {.tp = 4});
  setup.fp8_gathers = true;
  const StageCost narrow = CostWith(setup, {.tp = 4});
  const double gather = ToSeconds(wide.forward - narrow.forward);
  EXPECT_GT(gather, 0);
  // Two layers of two blocks: four gathers of half of 4096 x 4096 x 2 bytes.
  const JobSpec job = JobOf({{Llama3Block()}}, {.tp = 4});
  const double bandwidth = job.cluster.intra_node.bandwidth.bytes_per_second;
  EXPECT_NEAR(gather, 4 * 0.75 * 4096 * 4096 / bandwidth, 0.2 * gather);
  // In NVFP4 4 bits and, for 16 elements, a scale of 8.
  for (const Fp8Recipe recipe : {Fp8Recipe::kFp4, Fp8Recipe::kFp4Plain}) {
    setup.fp8_recipe = recipe;
    const auto forward = [&] {
      return CostWith(setup, {.tp = 4}, 4096, 2.5e15).forward;
    };
    const Duration half = forward();
    // Hopper has no such products: those of fp8.
    EXPECT_EQ(CostWith(setup, {.tp = 4}), narrow);
    setup.fp8_gathers = false;
    EXPECT_NEAR(ToSeconds(forward() - half), gather * (2 - 9.0 / 16),
                0.2 * gather);
    setup.fp8_gathers = true;
  }
  setup.fp8_products = false;
  EXPECT_EQ(CostWith(setup, {.tp = 4}).forward,
            CostWith({}, {.tp = 4}).forward);
}

// Where Megatron's sends block, a transfer waits for two launches, and the
// first and the last pass of a microbatch for the 13 that prepare it. No other
// price changes.
TEST(FrameworkPrice, AHostThatWaitsForTransfersDelaysThemAndTheBatch) {
  const auto model = [](CommunicationOverlap overlap, int32_t pp, double us) {
    JobSpec job =
        JobOf({{EmbeddingLayer(), Llama3Block(), LossHeadLayer()}}, {.pp = pp});
    job.setup.overlap = overlap;
    job.setup.host_per_kernel = Microseconds(us);
    return job;
  };
  const auto first = [](const JobSpec& job) {
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 4096), true);
  };
  const auto transfer = [](const JobSpec& job) {
    return StageCostModel(job).TransferTime(RankId(0), RankId(1),
                                            Bytes(1 << 20));
  };
  using Overlap = CommunicationOverlap;
  const JobSpec waits = model(Overlap::kNone, 2, 30);
  const JobSpec free = model(Overlap::kNone, 2, 0);
  EXPECT_EQ(transfer(waits).time - transfer(free).time, Microseconds(60));
  EXPECT_EQ(transfer(waits).occupancy - transfer(free).occupancy,
            Microseconds(60));
  EXPECT_EQ(transfer(model(Overlap::kData, 2, 30)).time,
            transfer(model(Overlap::kData, 2, 0)).time);
  EXPECT_EQ(first(waits).forward - first(free).forward, Microseconds(390));
  EXPECT_EQ(first(waits).fused, first(free).fused);
  // Other frameworks' streams wait, and their hosts launch ahead.
  for (const Framework other : {Framework::kPyTorch, Framework::kTorchTitan}) {
    JobSpec ahead = waits;
    ahead.setup.framework = other;
    JobSpec at_once = free;
    at_once.setup.framework = other;
    EXPECT_EQ(transfer(ahead).time, transfer(at_once).time);
    EXPECT_TRUE(StageCostModel(ahead).Links().blocking_sends);
  }
  EXPECT_EQ(first(model(Overlap::kNone, 1, 30)).forward,
            first(model(Overlap::kNone, 1, 0)).forward);
  EXPECT_EQ(first(model(Overlap::kData, 2, 30)).forward,
            first(model(Overlap::kData, 2, 0)).forward);
}

TEST(FrameworkPrice, TheUpdateGathersWeightsOfTheirSizeAndWaitsForTheHost) {
  JobSpec job = JobOf({{Llama3Block()}}, {.dp = 16});
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(1));
  const auto update = [&] {
    return StageCostModel(job).Updates(partition)[RankId(0)];
  };
  job.setup.overlap = CommunicationOverlap::kNone;  // In one collective.
  const RankUpdate two = update();
  job.setup.weight_bytes = 1;
  EXPECT_NEAR(ToSeconds(update().gather) / ToSeconds(two.gather), 0.5, 0.02);
  EXPECT_EQ(update().reduce, two.reduce);
  job.setup.weight_bytes = 2;
  job.setup.host_per_step = Microseconds(700);
  EXPECT_EQ(update().optimizer, two.optimizer + Microseconds(700));
}

TEST(FrameworkPrice, LayersInAGraphCostTheHostTheirReplaysOnly) {
  TrainingSetup setup;
  setup.host_per_kernel = Microseconds(30);
  const StageCost launched = CostWith(setup, {}, 256);
  setup.graphs = CudaGraphs::kLayers;
  const StageCost replayed = CostWith(setup, {}, 256);
  setup.graphs = CudaGraphs::kIteration;
  const StageCost whole = CostWith(setup, {}, 256);
  EXPECT_LT(replayed.forward, launched.forward);
  EXPECT_LT(replayed.fused, launched.fused);
  EXPECT_GT(replayed.forward, whole.forward);
  EXPECT_EQ(whole.forward, CostWith({}, {}, 256).forward);
}

TEST(FrameworkPrice, OverlappingTheDispatchCostsTheHostTwelvePartsALayer) {
  JobSpec job = JobOf({{MoeBlock()}}, {.ep = 2, .dp = 2});
  const auto cost = [&](bool overlaps, CudaGraphs graphs) {
    job.setup.overlap_dispatch = overlaps;
    job.setup.graphs = graphs;
    // So slow that nothing but launches counts.
    job.setup.host_per_kernel = Microseconds(100000);
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 64), true);
  };
  const StageCost with = cost(true, CudaGraphs::kNone);
  const StageCost without = cost(false, CudaGraphs::kNone);
  EXPECT_NEAR(ToSeconds(with.forward - without.forward), 5 * 14 * 0.1, 1e-3);
  EXPECT_NEAR(ToSeconds(with.fused - without.fused), 7 * 14 * 0.1, 1e-3);
  // Replays of graphs need no parts.
  EXPECT_EQ(cost(true, CudaGraphs::kLayers).forward,
            cost(false, CudaGraphs::kLayers).forward);
  // Where each GPU has all experts, nothing is sent.
  job.parallel = {};
  EXPECT_EQ(cost(true, CudaGraphs::kNone).forward,
            cost(false, CudaGraphs::kNone).forward);
  EXPECT_EQ(cost(true, CudaGraphs::kNone).fused,
            cost(false, CudaGraphs::kNone).fused);
}

TEST(FrameworkPrice, WhatContextParallelismDoesIsLaunchedByTheHost) {
  TrainingSetup setup;
  setup.host_per_kernel = Microseconds(100000);
  const auto launches = [&](int32_t cp, ContextParallelism context) {
    const StageCost cost = CostWith(setup, {.cp = cp, .context = context}, 256);
    return std::pair(std::lround(ToSeconds(cost.forward) * 10 / 2),
                     std::lround(ToSeconds(cost.fused) * 10 / 2));
  };
  const auto alone = launches(1, ContextParallelism::kRing);
  const auto ring = launches(4, ContextParallelism::kRing);
  EXPECT_EQ(ring.first - alone.first, 3 * 7);
  EXPECT_EQ(ring.second - alone.second, 3 * 9);
  // Two copies and an exchange of four tensors, whatever the number of GPUs.
  const auto all_to_all = launches(4, ContextParallelism::kAllToAll);
  EXPECT_EQ(all_to_all.first - alone.first, 12);
  EXPECT_EQ(all_to_all.second - alone.second, 12);
}

TEST(FrameworkPrice, GradientsThatAreSummedApartMoveSixBytesAParameter) {
  TrainingSetup setup;
  setup.sum_gradients_apart = true;
  const StageCost apart = CostWith(setup, {});
  const StageCost fused = CostWith({}, {});
  const double bytes = 2 * 6.0 * static_cast<double>(Parameters(Llama3Block()));
  const double seconds = bytes / (3.35e12 * 0.8);
  EXPECT_EQ(apart.forward, fused.forward);
  EXPECT_EQ(apart.backward, fused.backward);
  EXPECT_NEAR(ToSeconds(apart.weight_grad - fused.weight_grad), seconds, 1e-8);
  EXPECT_NEAR(ToSeconds(apart.fused - fused.fused), seconds, 1e-8);
}

TEST(FrameworkPrice, WeightsAreCastOnceAStepUnlessTheyAreGatheredAsFp8) {
  JobSpec job = JobOf({{Llama3Block(), LossHeadLayer()}}, {.dp = 4});
  job.cluster.device.fp8 = {1.979e15};
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(2));
  const auto optimizer = [&] {
    return ToSeconds(
        StageCostModel(job).Updates(partition)[RankId(0)].optimizer);
  };
  const double plain = optimizer();
  job.setup.fp8_products = true;
  const auto matrices = static_cast<double>(MatrixParameters(Llama3Block()));
  EXPECT_NEAR(optimizer() - plain, 4 * matrices / (3.35e12 * 0.8), 1e-8);
  job.setup.weight_bytes = 1;
  EXPECT_EQ(optimizer(), plain);
}

TEST(FrameworkPrice, MegatronHoldsFp8AndItsBuffersInTheirBytes) {
  const LayerSpec layer = Llama3Block();
  const int64_t n = Parameters(layer);
  JobSpec job = JobOf({{layer}}, {});
  const auto memory = [&] { return StageCostModel(job).Memory(StageOf(1)); };
  job.setup.held_weight_bytes = 1;
  EXPECT_EQ(memory().weights, Bytes(n));
  job.setup.gradient_bytes = 2;
  EXPECT_EQ(memory().gradients, Bytes(2 * n));
  job.setup.framework = Framework::kPyTorch;
  EXPECT_EQ(memory().gradients, Bytes(4 * n));
  // Moments in 16 bits and no fp32 weight: gradients are those of the weights.
  job.setup.optimizer_bytes = 4;
  EXPECT_EQ(memory().gradients, Bytes(2 * n));
  EXPECT_EQ(memory().optimizer, Bytes(4 * n));
  // Products' inputs, two norm outputs and what enters the output and down
  // products, are kept in one byte: that of attention also in two.
  const int64_t h = layer.hidden;
  const int64_t f = layer.ffn.hidden;
  TrainingSetup fp8;
  fp8.fp8_products = true;
  const StageCost wide = CostWith({}, {});
  EXPECT_EQ(wide.activations - CostWith(fp8, {}).activations,
            Bytes(2 * 4096 * (2 * h + f - h)));
  fp8.fp8_activation_inputs = true;
  EXPECT_EQ(wide.activations - CostWith(fp8, {}).activations,
            Bytes(2 * 4096 * (2 * h + f - h + 2 * f)));
  // torchao keeps them as they are.
  fp8.fp8_activation_inputs = false;
  fp8.framework = Framework::kTorchTitan;
  TrainingSetup titan;
  titan.framework = Framework::kTorchTitan;
  EXPECT_EQ(CostWith(fp8, {}).activations, CostWith(titan, {}).activations);
}

}  // namespace
}  // namespace pipeloom::emulator
