#include "emulator/op_graph.h"

#include <cmath>

#include "emulator/collective_cost.h"
#include "emulator/layer_fingerprint.h"
#include "emulator/roofline_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

int Collectives(const std::vector<OpStep>& steps, Collective kind) {
  int count = 0;
  for (const OpStep& step : steps) {
    for (const Op& op : step.communication) {
      const auto* collective = std::get_if<CollectiveOp>(&op);
      count += collective != nullptr && collective->kind == kind;
    }
  }
  return count;
}

double GemmAndAttentionFlops(const std::vector<OpStep>& steps) {
  double sum = 0;
  for (const OpStep& step : steps) {
    for (const Op& op : step.compute) {
      if (const auto* gemm = std::get_if<GemmOp>(&op)) sum += gemm->flops();
      if (const auto* attention = std::get_if<AttentionOp>(&op)) {
        sum += attention->flops;
      }
      if (const auto* fixed = std::get_if<FixedOp>(&op)) sum += fixed->flops;
    }
  }
  return sum;
}

TEST(OpGraph, ForwardFlopsAreTwoPerActiveParameterAndAttention) {
  const WorkShape shape = Sequences(4, 1024);
  const auto tokens = static_cast<double>(shape.tokens);
  const LayerOps llama = BuildLayerOps(Llama3Block(), shape, {}, {});
  const double matrices =
      2.0 * tokens * (4096.0 * (4096 + 2 * 1024 + 4096) + 3.0 * 4096 * 14336);
  const double attention = 2.0 * 4096 * 4 * 1024 * 1024;  // Causal half.
  EXPECT_DOUBLE_EQ(llama.forward_flops.count, matrices + attention);
  const LayerOps vit = BuildLayerOps(Vit5bBlock(), shape, {}, {});
  EXPECT_DOUBLE_EQ(vit.forward_flops.count,
                   2.0 * tokens * (4.0 * 1792 * 1792 + 2.0 * 1792 * 15360) +
                       4.0 * 1792 * 4 * 1024 * 1024);
}

TEST(OpGraph, OperatorsAddUpToTheLayersFlops) {
  const WorkShape shape = Sequences(4, 1024);
  for (const ParallelLayout& parallel :
       {ParallelLayout{}, ParallelLayout{.tp = 4},
        ParallelLayout{.tp = 2, .cp = 2}}) {
    for (const LayerSpec& layer : EveryLayerKind()) {
      const LayerOps ops = BuildLayerOps(layer, shape, parallel, {});
      const double gpus = parallel.gpus_per_rank();
      // Context products are not divided by cp, hence the tolerance.
      const double slack = layer.cross_attention.heads > 0 ? 0.05 : 1e-9;
      EXPECT_NEAR(GemmAndAttentionFlops(ops.forward) * gpus,
                  ops.forward_flops.count, slack * ops.forward_flops.count)
          << layer.name << static_cast<int>(layer.kind);
    }
  }
}

TEST(OpGraph, WindowAttentionCostsTokensTimesWindow) {
  LayerSpec window = Vit5bBlock();
  window.attention.kind = AttentionKind::kWindow;
  window.attention.window = 64;
  const WorkShape shape = Sequences(4, 1024);
  const double full =
      BuildLayerOps(Vit5bBlock(), shape, {}, {}).forward_flops.count;
  const double windowed =
      BuildLayerOps(window, shape, {}, {}).forward_flops.count;
  EXPECT_DOUBLE_EQ(full - windowed, 4.0 * 1792 * (4 * 1024) * (1024 - 64));
}

// Two blocks, each entered and left once (workload rules of Megatron).
TEST(OpGraph, ATensorParallelBlockHasTwoGathersAndTwoScattersForward) {
  const LayerOps ops =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {.tp = 4}, {});
  EXPECT_EQ(Collectives(ops.forward, Collective::kAllGather), 2);
  EXPECT_EQ(Collectives(ops.forward, Collective::kReduceScatter), 2);
  EXPECT_EQ(Collectives(ops.backward, Collective::kAllGather), 2);
  // Two gathers of kept shards; two scatters that the weight gradient hides.
  EXPECT_EQ(Collectives(ops.weight_grad, Collective::kAllGather), 2);
  EXPECT_EQ(Collectives(ops.weight_grad, Collective::kReduceScatter), 2);
  const LayerOps alone =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {}, {});
  EXPECT_EQ(Collectives(alone.forward, Collective::kAllGather), 0);
}

TEST(OpGraph, NothingHidesTheScattersOfAFrozenLayer) {
  const LayerOps ops = BuildLayerOps(Llama3Block(), Sequences(1, 4096),
                                     {.tp = 4}, {.weights = false});
  EXPECT_TRUE(ops.weight_grad.empty());
  EXPECT_EQ(Collectives(ops.backward, Collective::kReduceScatter), 2);
  const LayerOps forward_only =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {.tp = 4},
                    {.weights = false, .input = false});
  EXPECT_TRUE(forward_only.backward.empty());
}

TEST(OpGraph, ContextParallelAttentionPassesARing) {
  const LayerOps ops =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {.cp = 4}, {});
  EXPECT_EQ(Collectives(ops.forward, Collective::kRing), 1);
  EXPECT_EQ(Collectives(ops.backward, Collective::kRing), 1);
}

TEST(OpGraph, ExpertParallelismExchangesTokensTwiceAPass) {
  const LayerOps ops =
      BuildLayerOps(MoeBlock(), Sequences(1, 4096), {.ep = 8, .dp = 8}, {});
  EXPECT_EQ(Collectives(ops.forward, Collective::kAllToAll), 2);
  EXPECT_EQ(Collectives(ops.backward, Collective::kAllToAll), 2);
}

TEST(RooflineCost, EveryOperatorOfEveryLayerHasAFiniteCost) {
  const WorkShape shape = Sequences(4, 1024);
  const ParallelLayout parallel{.tp = 2, .cp = 2, .ep = 4, .dp = 2};
  const RooflineCost costs(H800Cluster(), parallel);
  for (const LayerSpec& layer : EveryLayerKind()) {
    const LayerOps ops = BuildLayerOps(layer, shape, parallel, {});
    for (const auto* pass : {&ops.forward, &ops.backward, &ops.weight_grad}) {
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
  EXPECT_EQ(outside.Cost(op),
            RingCollectiveTime(64e6, 8, H800Cluster().inter_node));
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

TEST(LayerFingerprint, EveryFieldButTheNameTellsLayersApart) {
  LayerSpec base = Llama3Block();
  LayerSpec renamed = base;
  renamed.name = "other";
  EXPECT_EQ(FingerprintOf(base), FingerprintOf(renamed));
  const auto differs = [&](auto change) {
    LayerSpec changed = base;
    change(changed);
    EXPECT_NE(FingerprintOf(base), FingerprintOf(changed));
  };
  differs([](LayerSpec& l) { l.kind = LayerKind::kFixedWork; });
  differs([](LayerSpec& l) { ++l.hidden; });
  differs([](LayerSpec& l) { l.attention.kind = AttentionKind::kFull; });
  differs([](LayerSpec& l) { ++l.attention.heads; });
  differs([](LayerSpec& l) { ++l.attention.kv_heads; });
  differs([](LayerSpec& l) { ++l.attention.head_dim; });
  differs([](LayerSpec& l) { ++l.attention.window; });
  differs([](LayerSpec& l) { ++l.attention.query_rank; });
  differs([](LayerSpec& l) { ++l.cross_attention.heads; });
  differs([](LayerSpec& l) { ++l.cross_attention.head_dim; });
  differs([](LayerSpec& l) { ++l.cross_attention.context_width; });
  differs([](LayerSpec& l) { ++l.ffn.hidden; });
  differs([](LayerSpec& l) { l.ffn.gated = false; });
  differs([](LayerSpec& l) { ++l.ffn.experts; });
  differs([](LayerSpec& l) { ++l.ffn.experts_per_token; });
  differs([](LayerSpec& l) { ++l.ffn.shared_experts; });
  differs([](LayerSpec& l) { ++l.ffn.expert_hidden; });
  differs([](LayerSpec& l) { ++l.vocab; });
  differs([](LayerSpec& l) { l.linears.push_back({.in = 1, .out = 2}); });
  differs([](LayerSpec& l) { ++l.vector_parameters; });
  differs([](LayerSpec& l) { l.tied = true; });
  differs([](LayerSpec& l) { l.on_output_tokens = true; });
  differs([](LayerSpec& l) { l.fixed_flops_per_token = 1; });
  differs([](LayerSpec& l) { l.fixed_flops_per_instance = 1; });
  differs([](LayerSpec& l) { l.fixed_activation_bytes_per_token = 1; });
  differs([](LayerSpec& l) { l.fixed_activation_bytes_per_instance = 1; });
}

}  // namespace
}  // namespace pipeloom::emulator
