#include "emulator/cost/roofline_cost.h"

#include <algorithm>

#include "emulator/network/collective_cost.h"
#include "emulator/ops/op_graph.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TEST(RooflineCost, EveryOperatorOfEveryLayerHasAFiniteCost) {
  const WorkShape shape = Sequences(4, 1024);
  const ParallelLayout parallel{.tp = 2, .cp = 2, .ep = 4, .dp = 2};
  const RooflineCost costs(H800Cluster(), parallel);
  for (const LayerSpec& layer : EveryLayerKind()) {
    const LayerOps ops = BuildLayerOps(layer, shape, parallel, {});
    for (const auto* pass :
         {&ops.forward, &ops.backward, &ops.weight_grad, &ops.fused}) {
      for (const OpStep& step : *pass) {
        for (const Op& op : step.compute) {
          EXPECT_GE(costs.Cost(op), H800Cluster().device.kernel_overhead);
          EXPECT_LT(costs.Cost(op), Seconds(10));
        }
        for (const Op& op : step.communication) {
          EXPECT_GT(costs.Cost(op), kZero);
          EXPECT_LT(costs.Cost(op), Seconds(10));
        }
      }
    }
  }
}

TEST(RooflineCost, AnOperatorWithoutWorkCostsNothing) {
  const RooflineCost costs(H800Cluster(), {});
  EXPECT_EQ(costs.Cost(GemmOp{}), kZero);
  EXPECT_EQ(costs.Cost(AttentionOp{}), kZero);
  EXPECT_EQ(costs.Cost(MemoryOp{}), kZero);
  EXPECT_EQ(costs.Cost(FixedOp{}), kZero);
  EXPECT_EQ(costs.Cost(CollectiveOp{}), kZero);
}

TEST(RooflineCost, GemmShapeFactorGrowsWithEachSize) {
  for (const double size : {1.0, 7.0, 64.0, 128.0, 200.0, 1000.0, 20000.0}) {
    const GemmOp base{.m = size, .n = 512, .k = 512};
    for (const double factor : {1.1, 2.0, 16.0}) {
      EXPECT_GE(GemmShapeFactor({.m = size * factor, .n = 512, .k = 512}),
                GemmShapeFactor(base));
      EXPECT_GE(GemmShapeFactor({.m = size, .n = 512, .k = 512 * factor}),
                GemmShapeFactor(base));
    }
    EXPECT_GT(GemmShapeFactor(base), 0);
    EXPECT_LE(GemmShapeFactor(base), 1);
  }
}

TEST(RooflineCost, CollectivesUseTheNetworkWhenTheGroupLeavesTheNode) {
  const CollectiveOp op{.size = 8, .bytes = 64e6};
  const RooflineCost inside(H800Cluster(), {.tp = 8});
  const RooflineCost outside(H800Cluster(), {.tp = 16});
  EXPECT_EQ(inside.Cost(op),
            RingCollectiveTime(64e6, 8, H800Cluster().intra_node));
  // A group over two nodes has all cards of both.
  LinkSpec cards = H800Cluster().inter_node;
  cards.bandwidth.bytes_per_second =
      std::min(8 * cards.bandwidth.bytes_per_second,
               H800Cluster().intra_node.bandwidth.bytes_per_second);
  const CollectiveOp both{.size = 16, .bytes = 64e6};
  EXPECT_EQ(outside.Cost(both), RingCollectiveTime(64e6, 16, cards));
}

TEST(CollectiveCost, ARingMovesAllButItsOwnPart) {
  const LinkSpec link{.latency = kZero, .bandwidth = {100e9}};
  for (const int64_t n : {2, 4, 8, 16}) {
    const auto gpus = static_cast<double>(n);
    EXPECT_NEAR(ToSeconds(RingCollectiveTime(1e9, n, link)),
                1e9 * (gpus - 1) / gpus / 100e9, 1e-9);
    EXPECT_NEAR(ToSeconds(RingPassTime(1e9, n, link)), 1e9 * (gpus - 1) / 100e9,
                1e-9);
  }
  EXPECT_EQ(RingCollectiveTime(1e9, 1, link), kZero);
  EXPECT_EQ(RingCollectiveTime(0, 8, link), kZero);
}

TEST(CollectiveCost, MoreBytesNeverCostLess) {
  const LinkSpec link{.latency = Microseconds(5), .bandwidth = {160e9}};
  Duration last = kZero;
  for (double bytes = 1; bytes < 1e10; bytes *= 1.3) {
    const Duration now = RingCollectiveTime(bytes, 8, link);
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace pipeloom::emulator
