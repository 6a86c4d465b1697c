// Bytes and kernels of a layer in plain PyTorch.
#include "emulator/framework/pytorch_traffic.h"

#include <gtest/gtest.h>

#include "base/numeric.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

double Sum(const EagerBytes& bytes) { return bytes.streamed + bytes.strided; }

// Llama 3.2 1B's layer. All inputs and outputs of every operation that PyTorch
// runs for it but products and attention, read off its dispatcher: 149.3 and
// 326.4 bytes a token and element of hidden width. Fused kernels move 20 and 28
// (norms), 4 and 4 (rotation, 1.25 times as wide), 6 and 10 (gate, 4 times).
TEST(PyTorchTraffic, ALlamaLayerMovesWhatItsOperationsDo) {
  LayerSpec layer = Llama3Block();
  layer.hidden = 2048;
  layer.attention.head_dim = 64;
  layer.ffn.hidden = 8192;
  constexpr double kElements = 2048;
  const EagerPasses bytes = PyTorchBytes(layer, 1, {}, true);
  // Keys and values repeated for their heads are no operations there.
  const double repeated = 9;
  // The concatenation of rotated halves runs at half the rate: counted twice.
  const double twice = 4 * 1.25;
  EXPECT_NEAR(Sum(bytes.forward) / kElements - repeated - twice,
              149.3 - 20 - 4 * 1.25 - 6 * 4, 1);
  EXPECT_NEAR(Sum(bytes.backward) / kElements - repeated,
              326.4 - 28 - 4 * 1.25 - 10 * 4, 3);
  // Half as many on each of two tensor-parallel GPUs, but for the norms.
  const EagerPasses half = PyTorchBytes(layer, 1, {.tp = 2}, true);
  EXPECT_LT(Sum(half.forward), Sum(bytes.forward));
  EXPECT_GT(Sum(half.forward), Sum(bytes.forward) / 2);
}

TEST(PyTorchTraffic, NormsOfQueriesAndKeysAreOperationsToo) {
  LayerSpec layer = Llama3Block();
  const EagerPasses plain = PyTorchBytes(layer, 7, {}, true);
  const EagerLaunches launches = PyTorchLaunches(layer, 7);
  layer.attention.query_key_norms = true;
  const EagerPasses more = PyTorchBytes(layer, 7, {}, true);
  EXPECT_EQ(Sum(more.forward) - Sum(plain.forward), 7 * 40 * 128 * 32.0);
  EXPECT_EQ(Sum(more.backward) - Sum(plain.backward), 7 * 40 * 128 * 86.0);
  EXPECT_EQ(PyTorchLaunches(layer, 7).forward - launches.forward, 16);
  EXPECT_EQ(PyTorchLaunches(layer, 7).backward - launches.backward, 34);
}

TEST(PyTorchTraffic, AWindowIsACallOfItsOwn) {
  LayerSpec layer = Vit5bBlock();
  const EagerLaunches whole = PyTorchLaunches(layer, 1000);
  layer.attention.kind = AttentionKind::kWindow;
  layer.attention.window = 64;
  const EagerLaunches windows = PyTorchLaunches(layer, 1000);
  EXPECT_EQ(windows.forward - whole.forward, 16);
  EXPECT_EQ(windows.backward - whole.backward, 48);
}

TEST(PyTorchTraffic, ExpertsMoveRowsOfTheTokensThatVisitThem) {
  const LayerSpec layer = MoeBlock();
  LayerSpec twice = layer;
  twice.ffn.experts_per_token *= 2;
  LayerSpec none = layer;
  none.ffn = {.hidden = 8, .gated = true};
  const auto forward = [](const LayerSpec& l) {
    return Sum(PyTorchBytes(l, 1, {}, true).forward);
  };
  const double gate = 8 * 4;
  EXPECT_DOUBLE_EQ(forward(twice) - forward(none) + gate,
                   2 * (forward(layer) - forward(none) + gate));
  EXPECT_EQ(PyTorchLaunches(layer, 1).forward,
            PyTorchLaunches(none, 1).forward + 35);
}

TEST(PyTorchTraffic, RowsByIndicesAreThoseOfTheExpertsOfAGpu) {
  const LayerSpec layer = MoeBlock();
  const double elements = static_cast<double>(layer.ffn.experts_per_token) *
                          static_cast<double>(layer.hidden);
  const EagerPasses one = IndexedRowBytes(layer, 16, {});
  EXPECT_EQ(Sum(one.forward), 23 * 16 * elements);
  EXPECT_EQ(Sum(one.backward), 27 * 16 * elements);
  // Where tensor-parallel GPUs share each expert, each has all rows; where each
  // GPU has whole experts, the rows are divided.
  EXPECT_EQ(Sum(IndexedRowBytes(layer, 16, {.tp = 4}).forward),
            Sum(one.forward));
  EXPECT_EQ(Sum(IndexedRowBytes(layer, 16, {.tp = 4, .expert_tp = 1}).forward),
            Sum(one.forward) / 4);
}

TEST(PyTorchTraffic, MegatronWithoutFusedKernelsSortsRowsByIndices) {
  JobSpec job = JobOf({{MoeBlock()}}, {.dp = 8});
  const auto cost = [&](bool eager, int32_t ep) {
    job.setup.eager_pointwise = eager;
    job.parallel.ep = ep;
    return StageCostModel(job).Cost(StageOf(1), Sequences(1, 1024), true);
  };
  const StageCost fused = cost(false, 1);
  const StageCost slow = cost(true, 1);
  // 8 and 16 bytes an element of norms and sums, 23 and 27 of eight rows.
  const double elements = 1024.0 * 2048;
  const double second_bytes =
      job.cluster.device.memory_bandwidth.bytes_per_second *
      job.cluster.device.memory_efficiency;
  EXPECT_NEAR(ToSeconds(slow.forward - fused.forward),
              (8 + 23 * 8 / 0.75) * elements / second_bytes, 1e-8);
  EXPECT_NEAR(ToSeconds(slow.backward - fused.backward),
              (16 + 27 * 8 / 0.75) * elements / second_bytes, 1e-8);
  // Rows of an all-to-all are sorted by other code.
  EXPECT_NEAR(ToSeconds(cost(true, 8).forward - cost(false, 8).forward),
              8 * elements / second_bytes, 1e-8);
}

TEST(PyTorchTraffic, ALossInFp32MovesMore) {
  const LayerSpec head = LossHeadLayer();
  const EagerPasses wide = PyTorchBytes(head, 3, {}, true);
  const EagerPasses narrow = PyTorchBytes(head, 3, {}, false);
  const double logits = 3 * Real(head.vocab);
  EXPECT_EQ(Sum(wide.forward), 14 * logits);
  EXPECT_EQ(Sum(wide.backward), 28 * logits);
  EXPECT_EQ(Sum(narrow.forward), 2 * logits);
  EXPECT_EQ(Sum(narrow.backward), 6 * logits);
}

// Kernels of 8,192 x 4,096 elements on an H200: 1.8 TB/s; no more than the
// memory gives.
TEST(PyTorchTraffic, StridedKernelsAreLimitedByTheMultiprocessors) {
  DeviceSpec device = H800Cluster().device;
  device.bf16 = {989e12};
  device.fp8 = {1979e12};
  device.memory_bandwidth = {4.8e12};
  EXPECT_NEAR(StridedRate(device), 1.8e12, 0.05e12);
  device.memory_bandwidth = {1e12};
  EXPECT_EQ(StridedRate(device), 1e12 * device.memory_efficiency);
}

// The optimizer of moments in 16 bits moves 19 bytes a parameter instead of 40.
TEST(PyTorchTraffic, SmallerOptimizerStateMovesLess) {
  const auto seconds = [](int32_t bytes) {
    JobSpec job = JobOf({{Llama3Block()}}, {});
    job.setup = SetupOf(Framework::kPyTorch);
    job.setup.gradient_bytes = 2;
    job.setup.optimizer_bytes = bytes;
    Partition partition;
    partition.num_ranks = 1;
    partition.stages.push_back(StageOf(1));
    return ToSeconds(
        StageCostModel(job).Updates(partition)[RankId(0)].optimizer);
  };
  EXPECT_NEAR(seconds(4) / seconds(12), 19.0 / 40, 0.01);
}

// Fully sharded gradients are flattened, cast and scaled: 18 bytes a parameter;
// Megatron-FSDP's fused layers write them where they are scaled: 4.
TEST(PyTorchTraffic, FusedLayersWriteShardedGradientsInPlace) {
  const auto seconds = [](bool eager, OptimizerSharding sharding) {
    JobSpec job = JobOf({{Llama3Block()}}, {.dp = 2});
    job.setup = SetupOf(Framework::kMegatronCore);
    job.setup.eager_pointwise = eager;
    job.training.optimizer_sharding = sharding;
    job.cluster.device.memory_bandwidth = {1e9};
    return ToSeconds(StageCostModel(job)
                         .Cost(StageOf(1), Sequences(1, 64), false)
                         .weight_grad);
  };
  const auto sharded = [&](bool eager) {
    return seconds(eager, OptimizerSharding::kZero3) -
           seconds(eager, OptimizerSharding::kZero1);
  };
  EXPECT_NEAR(sharded(true) / sharded(false), 18 / 4.0, 0.01);
}

}  // namespace
}  // namespace pipeloom::emulator
