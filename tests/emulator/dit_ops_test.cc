// Operators of diffusion transformers: norms of queries and keys, modulation.
#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "emulator/ops/op_graph.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TEST(DitOps, NormsOfQueriesAndKeysReadAndWriteBothAndAreMadeAgainWithThem) {
  LayerSpec normed = Llama3Block();
  normed.attention.query_key_norms = true;
  const WorkShape shape = Sequences(1, 1024);
  const ParallelLayout half{.tp = 2};
  const LayerOps with = BuildLayerOps(normed, shape, half, {});
  const LayerOps without = BuildLayerOps(Llama3Block(), shape, half, {});
  const auto bytes = [](const std::vector<OpStep>& steps) {
    double sum = 0;
    for (const OpStep& step : steps) {
      for (const Op& op : step.compute) {
        if (const auto* m = std::get_if<MemoryOp>(&op)) sum += m->bytes;
      }
    }
    return sum;
  };
  // 16 of 32 query heads and 4 of 8 key heads of 128 elements.
  const double elements = 1024.0 * (16 + 4) * 128;
  EXPECT_DOUBLE_EQ(bytes(with.forward) - bytes(without.forward), 4 * elements);
  EXPECT_DOUBLE_EQ(bytes(with.backward) - bytes(without.backward),
                   6 * elements);
  const auto projections = static_cast<size_t>(OperatorGroup::kProjections);
  EXPECT_EQ(with.again[projections].size(),
            without.again[projections].size() + 1);
  EXPECT_EQ(with.forward_flops, without.forward_flops);
}

TEST(DitOps, OnlyTheProductOfTheModulationKeepsItsPrecision) {
  const LayerOps ops = BuildLayerOps(DitBlock(), Sequences(8, 256), {}, {});
  int kept = 0;
  for (const auto* steps : {&ops.forward, &ops.fused}) {
    for (const OpStep& step : *steps) {
      for (const Op& op : step.compute) {
        const auto* gemm = std::get_if<GemmOp>(&op);
        if (gemm == nullptr || !gemm->keeps_precision) continue;
        ++kept;
        // Rows, or in the weight gradient the inner dimension: instances.
        EXPECT_EQ(gemm->pass == QueryPass::kWeightGrad ? gemm->k : gemm->m, 8);
      }
    }
  }
  EXPECT_EQ(kept, 3) << "a product and its two gradients";
}

}  // namespace
}  // namespace pipeloom::emulator
