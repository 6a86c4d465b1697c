// The forward of attention: its model against closed forms, and what changes
// between generations of GPUs.
#include "emulator/cost/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "emulator/cost/multiprocessor.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/cost/roofline_cost.h"
#include "gtest/gtest.h"

namespace pipeloom::emulator {
namespace {

constexpr DeviceRates kA100 = {.bf16_flops_per_second = 312e12,
                               .bytes_per_second = 2.039e12,
                               .multiprocessors = 108};
constexpr DeviceRates kH100 = {.bf16_flops_per_second = 989e12,
                               .bytes_per_second = 3.35e12,
                               .multiprocessors = 132};
constexpr DeviceRates kB200 = {.bf16_flops_per_second = 2250e12,
                               .bytes_per_second = 7.7e12,
                               .multiprocessors = 148};

// Shares of products and exponentials, their norm's exponent, tail, fill, block
// in microseconds, bytes a cycle, overhead, sharpness: products at their peak,
// and next to nothing else.
constexpr AttentionConstants kBare = {1, 1,    1,    1,   1,    2,
                                      1, 1e-9, 1e-9, 1e9, 1e-9, 8};

AttentionShape Shape(double batch, double seq, double heads, double kv_heads,
                     double dim) {
  return {.batch = batch,
          .seq = seq,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = dim,
          .value_dim = dim};
}

double Seconds(const DeviceRates& rates, const AttentionShape& shape) {
  return AttentionModelSeconds(kBare, rates, MultiprocessorOf(rates), shape);
}

// Returns the FLOPs a second relative to the peak.
double Share(const DeviceRates& rates, double dim) {
  const AttentionShape shape = Shape(64, 16384, 32, 32, dim);
  return 4 * 64 * 32 * 16384.0 * 16384 * dim / Seconds(rates, shape) /
         rates.bf16_flops_per_second;
}

TEST(AttentionCost, ADataSheetTellsClockAndOperationsACycle) {
  EXPECT_NEAR(MultiprocessorOf(kA100).cycles_per_second, 1.41e9, 0.01e9);
  EXPECT_EQ(MultiprocessorOf(kA100).operations_per_cycle, 2048);
  EXPECT_NEAR(MultiprocessorOf(kH100).cycles_per_second, 1.83e9, 0.01e9);
  EXPECT_EQ(MultiprocessorOf(kH100).operations_per_cycle, 4096);
  EXPECT_NEAR(MultiprocessorOf(kB200).cycles_per_second, 1.86e9, 0.01e9);
  EXPECT_EQ(MultiprocessorOf(kB200).operations_per_cycle, 8192);
  EXPECT_FALSE(MultiprocessorOf(kA100).asynchronous());
  EXPECT_TRUE(MultiprocessorOf(kH100).asynchronous());
}

// A query and a key take 4 d operations and one exponential, in whose time a
// multiprocessor of an A100 does 128 operations, of an H100 256, of a B200 512.
TEST(AttentionCost, ExponentialsLimitShortHeadsTheMoreTheFasterProductsAre) {
  EXPECT_NEAR(Share(kA100, 128), 1 / (1 + 128.0 / 512), 1e-3);
  EXPECT_NEAR(Share(kA100, 64), 1 / (1 + 128.0 / 256), 1e-3);
  EXPECT_NEAR(Share(kH100, 128), 1 / std::hypot(1, 256.0 / 512), 1e-3);
  EXPECT_NEAR(Share(kH100, 64), 1 / std::hypot(1, 256.0 / 256), 1e-3);
  EXPECT_NEAR(Share(kB200, 128), 1 / std::hypot(1, 512.0 / 512), 1e-3);
  EXPECT_NEAR(Share(kB200, 64), 1 / std::hypot(1, 512.0 / 256), 1e-3);
}

TEST(AttentionCost, QueryHeadsOfAKeyHeadShareABlock) {
  AttentionConstants blocks = kBare;
  blocks[8] = 10;  // Microseconds a block.
  const auto seconds = [&](const AttentionShape& shape) {
    return AttentionModelSeconds(blocks, kH100, MultiprocessorOf(kH100), shape);
  };
  // 4,096 blocks of one token and one head, or 128 of one token and 32 heads.
  EXPECT_NEAR(seconds(Shape(128, 1, 32, 32, 128)), 4096.0 / 132 * 10e-6, 1e-6);
  EXPECT_NEAR(seconds(Shape(128, 1, 32, 1, 128)), 10e-6, 1e-6);
  // Long sequences fill their blocks either way.
  EXPECT_NEAR(seconds(Shape(8, 8192, 32, 32, 128)) /
                  seconds(Shape(8, 8192, 32, 8, 128)),
              1, 1e-3);
}

// Attention of a device with one and a half times the
// peak is never slower, though its clock would be another by the data sheet.
TEST(AttentionCost, AHigherPeakOfTheSameDeviceKeepsItsClock) {
  DeviceProfile profile{.device = "gpu", .rates = kH100};
  AttentionTable table{.pass = QueryPass::kForward,
                       .dtype = QueryDtype::kBf16,
                       .mask = QueryMask::kFull};
  for (const int64_t seq : {512, 1024, 2048, 4096, 8192}) {
    table.batch.push_back(4);
    table.seq.push_back(seq);
    table.heads.push_back(32);
    table.kv_heads.push_back(32);
    table.head_dim.push_back(64);
    table.value_dim.push_back(64);
    table.us.push_back(
        1e6 * Seconds(kH100, Shape(4, static_cast<double>(seq), 32, 32, 64)));
  }
  profile.attention.push_back(table);
  ClusterSpec cluster;
  cluster.gpus_per_node = 8;
  cluster.device.bf16 = {kH100.bf16_flops_per_second};
  cluster.device.memory_bandwidth = {kH100.bytes_per_second};
  AttentionOp op;
  op.flops = 4.0 * 4 * 32 * 3000 * 3000 * 64;
  op.mean_length = 3000;
  op.tokens = 12000;
  op.heads = op.kv_heads = 32;
  op.head_dim = op.value_dim = 64;
  const auto time = [&](const std::string& name, double factor) {
    cluster.device.name = name;
    cluster.device.bf16 = {factor * kH100.bf16_flops_per_second};
    return ProfileCost(cluster, {}, profile).Cost(op);
  };
  EXPECT_LT(time("gpu", 1.5), time("gpu", 1));
  EXPECT_LT(time("gpu", 1.2), time("gpu", 1));
  EXPECT_GT(time("another", 1.5), time("gpu", 1.5));
}

TEST(AttentionShape, ACausalWindowIsAsEfficientAsASequenceTwiceAsLong) {
  AttentionOp op{.flops = 1e9,
                 .mean_length = 4096,
                 .head_dim = 64,
                 .value_dim = 64,
                 .causal = true};
  const DeviceSpec device;
  const double whole = AttentionShapeFactor(op, device);
  op.window = 128;
  const double window = AttentionShapeFactor(op, device);
  EXPECT_NEAR(window / whole, 256.0 / (256 + 530) / (4096.0 / (4096 + 530)),
              1e-9);
  op.window = 4096;
  EXPECT_EQ(AttentionShapeFactor(op, device), whole);
}

TEST(AttentionShape, BlackwellHasAKernelForLatentHeadsAndLosesMoreOnNarrow) {
  AttentionOp op{.flops = 1e9, .mean_length = 4096, .causal = true};
  DeviceSpec hopper;
  hopper.bf16 = {9.89e14};
  DeviceSpec blackwell;
  blackwell.bf16 = {2.5e15};
  const auto relative = [&](const DeviceSpec& device, int64_t head_dim,
                            bool backward) {
    op.backward = backward;
    op.head_dim = op.value_dim = 128;
    const double usual = AttentionShapeFactor(op, device);
    op.head_dim = head_dim;
    op.value_dim = std::min<int64_t>(head_dim, 128);
    return AttentionShapeFactor(op, device) / usual;
  };
  // On Hopper, 64 of 256 are padding.
  EXPECT_NEAR(relative(hopper, 192, false), 1.15 * 192 / 256, 1e-9);
  EXPECT_NEAR(relative(blackwell, 192, false), 1.0, 1e-9);
  EXPECT_NEAR(relative(blackwell, 192, true), 0.9, 1e-9);
  EXPECT_NEAR(relative(hopper, 64, false), 0.77, 1e-9);
  EXPECT_NEAR(relative(blackwell, 64, true), 0.61, 1e-9);
}

}  // namespace
}  // namespace pipeloom::emulator
