#include "emulator/ops/op_graph.h"

#include <cmath>

#include "base/numeric.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/ops/layer_tokens.h"
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
      // Products of the context and of the condition are not divided by cp,
      // hence the tolerance.
      const bool once = layer.modulation.vectors > 0;
      const double slack =
          layer.cross_attention.heads > 0 || once ? 0.05 : 1e-9;
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

double ForwardFlops(const LayerSpec& layer, const WorkShape& shape) {
  return BuildLayerOps(layer, shape, {}, {}).forward_flops.count;
}

TEST(OpGraph, ACausalWindowCostsTheTriangleUpToItsLengthAndItsTrapezeBeyond) {
  const LayerSpec whole = Llama3Block();
  LayerSpec windowed = whole;
  windowed.attention.window = 1024;
  const AttentionSpec& a = whole.attention;
  const double a_pair = 4.0 * Real(a.heads) * Real(a.head_dim);
  for (const int64_t length : {1, 100, 1023, 1024}) {
    const WorkShape shape = Sequences(3, length);
    EXPECT_DOUBLE_EQ(ForwardFlops(windowed, shape), ForwardFlops(whole, shape));
  }
  for (const int64_t length : {1025, 2048, 5000, 131072}) {
    const WorkShape shape = Sequences(3, length);
    const double s = Real(length);
    const double saved = 3 * (s * s / 2 - (1024 * s - 1024.0 * 1024 / 2));
    EXPECT_NEAR(ForwardFlops(whole, shape) - ForwardFlops(windowed, shape),
                a_pair * saved, 1e-9 * a_pair * 3 * s * s);
  }
}

TEST(OpGraph, ACausalWindowOfMixedLengthsLiesBetweenTheSumAndTheTriangle) {
  const LayerSpec whole = Llama3Block();
  LayerSpec windowed = whole;
  windowed.attention.window = 512;
  WorkShape mixed = Sequences(40, 100);
  mixed += Sequences(2, 4000);
  const double products =
      ForwardFlops(whole, mixed) - 2.0 * Real(whole.attention.heads) *
                                       Real(whole.attention.head_dim) *
                                       mixed.squared_tokens;
  const double sum = ForwardFlops(windowed, Sequences(40, 100)) +
                     ForwardFlops(windowed, Sequences(2, 4000));
  EXPECT_GE(ForwardFlops(windowed, mixed), sum * (1 - 1e-12));
  EXPECT_LT(ForwardFlops(windowed, mixed) - products, 1.5 * (sum - products));
  EXPECT_LT(ForwardFlops(windowed, mixed), ForwardFlops(whole, mixed));
}

TEST(OpGraph, AttentionOfACausalWindowSaysItsWindowAndLength) {
  LayerSpec windowed = Llama3Block();
  windowed.attention.window = 128;
  const LayerOps ops = BuildLayerOps(windowed, Sequences(2, 4096), {}, {});
  int found = 0;
  for (const OpStep& step : ops.forward) {
    for (const Op& op : step.compute) {
      const auto* attention = std::get_if<AttentionOp>(&op);
      if (attention == nullptr) continue;
      ++found;
      EXPECT_TRUE(attention->causal);
      EXPECT_EQ(attention->window, 128);
      EXPECT_DOUBLE_EQ(attention->mean_length, 4096);
    }
  }
  EXPECT_EQ(found, 1);
}

// Two blocks, each entered and left once (workload rules of Megatron).
TEST(OpGraph, ATensorParallelBlockHasTwoGathersAndTwoScattersForward) {
  const LayerOps ops =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {.tp = 4}, {});
  EXPECT_EQ(Collectives(ops.forward, Collective::kAllGather), 2);
  EXPECT_EQ(Collectives(ops.forward, Collective::kReduceScatter), 2);
  // Split: the input gradient is scattered before it is handed on; the weight
  // gradient gathers the kept shards.
  EXPECT_EQ(Collectives(ops.backward, Collective::kAllGather), 2);
  EXPECT_EQ(Collectives(ops.backward, Collective::kReduceScatter), 2);
  EXPECT_EQ(Collectives(ops.weight_grad, Collective::kAllGather), 2);
  EXPECT_EQ(Collectives(ops.weight_grad, Collective::kReduceScatter), 0);
  EXPECT_EQ(Collectives(ops.fused, Collective::kAllGather), 4);
  EXPECT_EQ(Collectives(ops.fused, Collective::kReduceScatter), 2);
  const LayerOps alone =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {}, {});
  EXPECT_EQ(Collectives(alone.forward, Collective::kAllGather), 0);
}

// A fused backward (Megatron-Core's column-parallel layer) overlaps the gather
// with the input gradient, and the scatter with the weight gradient.
TEST(OpGraph, AFusedBackwardHidesItsGatherAndItsScatter) {
  const LayerOps ops =
      BuildLayerOps(Llama3Block(), Sequences(1, 4096), {.tp = 4}, {});
  int gathers = 0;
  int scatters = 0;
  for (const OpStep& step : ops.fused) {
    if (step.compute.empty() || step.communication.empty()) continue;
    ASSERT_EQ(step.compute.size(), 1);
    ASSERT_EQ(step.communication.size(), 1);
    const auto& product = std::get<GemmOp>(step.compute[0]);
    const auto& moved = std::get<CollectiveOp>(step.communication[0]);
    if (moved.kind == Collective::kAllGather) {
      EXPECT_EQ(product.pass, QueryPass::kInputGrad);
      ++gathers;
    } else {
      EXPECT_EQ(product.pass, QueryPass::kWeightGrad);
      ++scatters;
    }
  }
  EXPECT_EQ(gathers, 2);
  EXPECT_EQ(scatters, 2);
}

// Experts keep the rows that were sent to them: nothing is gathered again, and
// no product's weight gradient follows the scatter.
TEST(OpGraph, ExpertsExposeTheScatterOfTheirInputGradient) {
  const LayerOps ops = BuildLayerOps(MoeBlock(), Sequences(1, 4096),
                                     {.tp = 4, .ep = 8, .dp = 8}, {});
  EXPECT_EQ(Collectives(ops.weight_grad, Collective::kAllGather), 1);
  int exposed = 0;
  for (const OpStep& step : ops.fused) {
    exposed += step.compute.empty() && !step.communication.empty() &&
               std::get<CollectiveOp>(step.communication[0]).kind ==
                   Collective::kReduceScatter;
  }
  EXPECT_EQ(exposed, 2);  // Routed rows, and tokens of the shared expert.
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

// DeepSeek-V3 paper, section 2.1.1: queries over a rank of 1536, keys and
// values over 512 and 64 shared rotary elements, 128 heads of 192 and 128.
TEST(OpGraph, MlaCountsItsLowRankProductsAndUnequalHeads) {
  const WorkShape shape = Sequences(2, 1024);
  const double weights = 7168.0 * 1536 + 1536.0 * 128 * 192 +
                         7168.0 * (512 + 64) + 512.0 * 128 * (128 + 128) +
                         128.0 * 128 * 7168 + 3.0 * 7168 * 18432;
  const double attention = 128.0 * (192 + 128) * 2 * 1024 * 1024;
  EXPECT_DOUBLE_EQ(BuildLayerOps(MlaBlock(), shape, {}, {}).forward_flops.count,
                   2 * 2 * 1024 * weights + attention);
}

double MemoryBytes(const std::vector<OpStep>& steps) {
  double sum = 0;
  for (const OpStep& step : steps) {
    for (const Op& op : step.compute) {
      if (const auto* memory = std::get_if<MemoryOp>(&op)) sum += memory->bytes;
    }
  }
  return sum;
}

double CollectiveBytes(const std::vector<OpStep>& steps, Collective kind) {
  double sum = 0;
  for (const OpStep& step : steps) {
    for (const Op& op : step.communication) {
      const auto* collective = std::get_if<CollectiveOp>(&op);
      if (collective != nullptr && collective->kind == kind) {
        sum += collective->bytes;
      }
    }
  }
  return sum;
}

TEST(OpGraph, TensorParallelMlaGathersItsRanksInsteadOfItsWidth) {
  const LayerOps ops =
      BuildLayerOps(MlaBlock(), Sequences(1, 1024), {.tp = 8}, {});
  EXPECT_DOUBLE_EQ(CollectiveBytes(ops.forward, Collective::kAllGather),
                   2 * 1024.0 * (1536 + 512 + 64 + 7168));
}

TEST(OpGraph, SparseAttentionWorksOnAShareOfThePairs) {
  const WorkShape shape = Sequences(1, 8192);
  const auto attention = [&](const LayerSpec& layer, double density) {
    return BuildLayerOps(layer, shape, {}, {}, {.attention_density = density})
               .forward_flops.count -
           2.0 * static_cast<double>(ActiveMatrixParameters(layer)) * 8192;
  };
  const double dense = attention(Llama3Block(), 1);
  LayerSpec sparse = Llama3Block();
  sparse.attention.density = 0.5;
  EXPECT_NEAR(attention(sparse, 1), 0.5 * dense, 1e-6 * dense);
  EXPECT_NEAR(attention(sparse, 0.25), 0.125 * dense, 1e-6 * dense);
}

TEST(OpGraph, ContextParallelismMovesKeysAndValuesOrHeads) {
  const WorkShape shape = Sequences(1, 4096);
  const double kv = 2 * 1024.0 * 8 * 2 * 128;  // Bytes of one share.
  const double query = 2 * 1024.0 * 32 * 128;
  const auto build = [&](ContextParallelism context) {
    return BuildLayerOps(Llama3Block(), shape, {.cp = 4, .context = context},
                         {});
  };
  const LayerOps ring = build(ContextParallelism::kRing);
  EXPECT_DOUBLE_EQ(CollectiveBytes(ring.forward, Collective::kRing), kv);
  EXPECT_DOUBLE_EQ(CollectiveBytes(ring.backward, Collective::kRing), 2 * kv);
  const LayerOps gather = build(ContextParallelism::kAllGather);
  EXPECT_DOUBLE_EQ(CollectiveBytes(gather.forward, Collective::kAllGather),
                   4 * kv);
  EXPECT_DOUBLE_EQ(CollectiveBytes(gather.backward, Collective::kAllGather),
                   4 * kv);
  EXPECT_DOUBLE_EQ(CollectiveBytes(gather.backward, Collective::kReduceScatter),
                   4 * kv);
  // The gather stands before the attention, the scatter after it.
  const auto first = [](const std::vector<OpStep>& steps, Collective kind) {
    for (size_t i = 0; i < steps.size(); ++i) {
      if (Collectives({steps[i]}, kind) > 0) return i;
    }
    return steps.size();
  };
  EXPECT_LT(first(gather.backward, Collective::kAllGather),
            first(gather.backward, Collective::kReduceScatter));
  const LayerOps all_to_all = build(ContextParallelism::kAllToAll);
  EXPECT_DOUBLE_EQ(CollectiveBytes(all_to_all.forward, Collective::kAllToAll),
                   kv + 2 * query);
  EXPECT_DOUBLE_EQ(CollectiveBytes(all_to_all.backward, Collective::kAllToAll),
                   kv + 2 * query);
  // Each tensor is copied ahead of its exchange and behind it.
  const double copies = 4 * (kv + 2 * query) / 0.75;
  EXPECT_NEAR(MemoryBytes(all_to_all.forward),
              MemoryBytes(gather.forward) + copies, 1);
  const LayerOps fp8 = BuildLayerOps(
      Llama3Block(), shape, {.cp = 4, .context = ContextParallelism::kAllToAll},
      {}, {.fp8_attention = true});
  EXPECT_DOUBLE_EQ(CollectiveBytes(fp8.backward, Collective::kAllToAll),
                   (kv + 2 * query) / 2);
  EXPECT_NEAR(
      MemoryBytes(fp8.backward),
      MemoryBytes(gather.backward) + copies / 2 + 1.5 * (kv + 2 * query), 1);
  for (const LayerOps& ops : {gather, all_to_all}) {
    EXPECT_EQ(ops.forward_flops, ring.forward_flops);
    EXPECT_DOUBLE_EQ(GemmAndAttentionFlops(ops.backward),
                     GemmAndAttentionFlops(ring.backward));
  }
}

TEST(OpGraph, ModulationIsAProductAnInstanceAndAPassABlock) {
  LayerSpec plain = DitBlock();
  plain.modulation = {};
  LayerSpec shared = DitBlock();
  shared.modulation.condition_width = 0;
  const WorkShape shape = Sequences(8, 256);
  const LayerOps without = BuildLayerOps(plain, shape, {}, {});
  const LayerOps table = BuildLayerOps(shared, shape, {}, {});
  const LayerOps own = BuildLayerOps(DitBlock(), shape, {}, {});
  EXPECT_EQ(table.forward.size(), without.forward.size() + 2);
  EXPECT_EQ(own.forward.size(), table.forward.size() + 1);
  EXPECT_EQ(table.forward_flops, without.forward_flops);
  EXPECT_DOUBLE_EQ(own.forward_flops.count - without.forward_flops.count,
                   2.0 * 8 * 6 * 1152 * 1152);
  EXPECT_EQ(MatrixParameters(DitBlock()) - MatrixParameters(plain),
            6 * 1152 * 1152);
}

// Two 3 x 3 convolutions on a quarter of the tokens.
TEST(OpGraph, ConvolutionsCostTheirKernelAtEveryPosition) {
  const WorkShape shape = Sequences(4, 4096);
  const LayerSpec layer = ConvolutionLayer();
  const int64_t weights = 9 * (320 * 640 + 640 * 640);
  EXPECT_EQ(Parameters(layer), weights);
  EXPECT_EQ(LayerTokens(layer, shape), 4096);
  EXPECT_DOUBLE_EQ(BuildLayerOps(layer, shape, {}, {}).forward_flops.count,
                   2.0 * 4096 * static_cast<double>(weights));
}

TEST(OpGraph, Fp8ProductsAreFasterAndFp32OnesSlower) {
  const WorkShape shape = Sequences(1, 8192);
  ClusterSpec cluster = H800Cluster();
  cluster.device.fp8 = {1979e12};
  const RooflineCost costs(cluster, {});
  const auto time = [&](Precision precision) {
    return CostOf(BuildLayerOps(Llama3Block(), shape, {}, {},
                                {.precision = precision})
                      .forward,
                  costs)
        .time;
  };
  const Duration bf16 = time(Precision::kBf16);
  EXPECT_LT(time(Precision::kFp8), bf16);
  EXPECT_GT(2 * time(Precision::kFp8), bf16);
  EXPECT_GT(time(Precision::kFp32), bf16);
  cluster.device.fp8 = {};  // Without the units products run in bf16.
  EXPECT_GT(CostOf(BuildLayerOps(Llama3Block(), shape, {}, {},
                                 {.precision = Precision::kFp8})
                       .forward,
                   RooflineCost(cluster, {}))
                .time,
            time(Precision::kFp8));
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

TEST(OpGraph, BiasesAndLimitsOfExpertsMoveBytesUnlessOneKernelDoesAll) {
  const LayerSpec plain = MoeBlock();
  LayerSpec oss = plain;
  oss.ffn.expert_biases = true;
  oss.ffn.clamped = true;
  const WorkShape shape = Sequences(1, 1024);
  constexpr double kPyTorchShare = 0.75;  // Relative to fused kernels.
  const LayerOps with = BuildLayerOps(oss, shape, {}, {});
  const LayerOps without = BuildLayerOps(plain, shape, {}, {});
  const double rows = 1024.0 * static_cast<double>(plain.ffn.experts_per_token);
  const double inner =
      static_cast<double>(plain.ffn.expert_hidden) * rows +
      static_cast<double>(plain.ffn.shared_experts * plain.ffn.expert_hidden) *
          1024;
  const double results = static_cast<double>(plain.hidden) * rows;
  EXPECT_NEAR(MemoryBytes(with.forward) - MemoryBytes(without.forward),
              (16 * inner + 28 * results) / kPyTorchShare, 1);
  EXPECT_NEAR(MemoryBytes(with.backward) - MemoryBytes(without.backward),
              (30 * inner + 40 * results) / kPyTorchShare, 1);
  const LayerOps fused =
      BuildLayerOps(oss, shape, {}, {}, {.fused_experts = true});
  EXPECT_EQ(MemoryBytes(fused.forward), MemoryBytes(without.forward));
  EXPECT_EQ(MemoryBytes(fused.backward), MemoryBytes(without.backward));
}

TEST(OpGraph, RowsOfAnAllToAllAreSortedOnceMoreForSeveralExperts) {
  const LayerSpec layer = MoeBlock();
  const auto bytes = [&](int32_t ep, ExpertDispatch dispatch) {
    return MemoryBytes(BuildLayerOps(layer, Sequences(1, 1024), {.ep = ep}, {},
                                     {.dispatch = dispatch})
                           .forward);
  };
  const double rows = 1024.0 * static_cast<double>(layer.ffn.experts_per_token);
  const double sorts = 2 * 4 * rows * static_cast<double>(layer.hidden);
  const auto all = static_cast<int32_t>(layer.ffn.experts);
  EXPECT_NEAR(bytes(2, ExpertDispatch::kEachExpert) -
                  bytes(2, ExpertDispatch::kEachGpu),
              sorts, 1);
  // With one expert a GPU, rows arrive as they are needed.
  EXPECT_EQ(bytes(all, ExpertDispatch::kEachExpert),
            bytes(all, ExpertDispatch::kEachGpu));
}

TEST(OpGraph, GpusThatShareExpertsSortTheRowsOfAllGatheredTokens) {
  const LayerSpec layer = MoeBlock();
  const auto bytes = [&](int32_t expert_tp) {
    return MemoryBytes(BuildLayerOps(layer, Sequences(1, 1024),
                                     {.tp = 4, .expert_tp = expert_tp}, {}, {})
                           .forward);
  };
  const double rows = 1024.0 * static_cast<double>(layer.ffn.experts_per_token);
  const double sorts = 2 * 4 * rows * static_cast<double>(layer.hidden);
  EXPECT_NEAR(bytes(4) - bytes(1), sorts * 3 / 4, 1);
}

TEST(OpGraph, ARingOfKeysRunsAttentionInStepsOfEqualWork) {
  const ParallelLayout ring{.cp = 4};
  const LayerOps ops = BuildLayerOps(Llama3Block(), Sequences(1, 8192), ring,
                                     GradientNeeds{}, {});
  const ParallelLayout gather{.cp = 4,
                              .context = ContextParallelism::kAllGather};
  const LayerOps whole = BuildLayerOps(Llama3Block(), Sequences(1, 8192),
                                       gather, GradientNeeds{}, {});
  const auto attention = [](const std::vector<OpStep>& steps) {
    std::vector<AttentionOp> found;
    for (const OpStep& step : steps) {
      for (const Op& op : step.compute) {
        if (const auto* a = std::get_if<AttentionOp>(&op)) found.push_back(*a);
      }
    }
    return found;
  };
  const auto steps = attention(ops.forward);
  ASSERT_EQ(steps.size(), 4u);
  ASSERT_EQ(attention(whole.forward).size(), 1u);
  EXPECT_TRUE(steps[0].causal);
  EXPECT_FALSE(steps[1].causal);
  for (const AttentionOp& step : steps) {
    EXPECT_DOUBLE_EQ(step.flops, attention(whole.forward)[0].flops / 4);
    EXPECT_DOUBLE_EQ(step.mean_length, 8192 / 4);
  }
  EXPECT_EQ(attention(ops.backward).size(), 4u);
}

}  // namespace
}  // namespace pipeloom::emulator
