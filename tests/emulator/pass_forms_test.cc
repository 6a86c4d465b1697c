// A backward that hands a gradient on moves as much as its forward did before
// it hands it on: with slow links inside a node, where communication is all of
// the time, it cannot be much shorter.
#include <string>
#include <vector>

#include "base/random.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/stage_cost.h"
#include "formats/job/spec_loader.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

constexpr double kSlowLink = 1e9;  // Bytes a second.

void ExpectCompleteBackwards(const StageCost& cost) {
  EXPECT_GE(ToSeconds(cost.backward), 0.95 * ToSeconds(cost.forward));
  EXPECT_GE(ToSeconds(cost.fused), 0.95 * ToSeconds(cost.forward));
  EXPECT_GE(cost.backward_gap, kZero);
  EXPECT_LE(cost.backward_gap, cost.backward);
  EXPECT_GE(cost.fused_gap, kZero);
  EXPECT_LE(cost.fused_gap, cost.fused);
}

TEST(PassForms, NoBackwardOfAShippedJobHandsOnSoonerThanItsCollectivesEnd) {
  const std::string data = formats::kDataDir;
  for (const char* name :
       {"dip-vlm-s", "llama3-8b", "qwen2.5-vl-72b", "dip-t2v-s"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(JobSpec job,
                         formats::LoadJob(name, data, formats::ReadFile));
    job.cluster.intra_node.bandwidth.bytes_per_second = kSlowLink;
    for (const int32_t tp : {2, 4, 8}) {
      SCOPED_TRACE(tp);
      job.parallel.tp = tp;
      const StageCostModel costs(job);
      for (const ModuleId m : job.model.modules.ids()) {
        if (job.IsFrozen(m)) continue;
        const ModuleSpec& module = job.model.modules[m];
        for (const LayerId layer : module.layers.ids()) {
          if (layer.value() == 0) continue;  // Hands nothing on.
          SCOPED_TRACE(::testing::Message()
                       << module.name << " layer " << layer.value());
          ExpectCompleteBackwards(costs.Cost({.module = m,
                                              .first_layer = layer,
                                              .num_layers = 1,
                                              .rank = RankId(0),
                                              .segment = SegmentId(0)},
                                             Sequences(2, 4096), true));
        }
      }
    }
  }
}

TEST(PassForms, NorDoesOneOfARandomLayerInAnyGroup) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<LayerSpec> layers = EveryLayerKind();
    LayerSpec layer = layers[random.Below(layers.size())];
    if (layer.kind == LayerKind::kEmbedding) continue;  // Hands nothing on.
    if (layer.kind == LayerKind::kTransformer) {
      layer.hidden = 512 * random.Between(1, 16);
      if (layer.ffn.hidden > 0) layer.ffn.hidden = 256 * random.Between(1, 64);
    }
    ParallelLayout parallel;
    parallel.tp = 1 << random.Between(0, 3);
    parallel.cp = 1 << random.Between(0, 1);
    if (layer.ffn.experts > 0) {
      parallel.ep = 1 << random.Between(0, 3);
      parallel.dp = parallel.ep;
    }
    constexpr ContextParallelism kContexts[] = {ContextParallelism::kRing,
                                                ContextParallelism::kAllGather,
                                                ContextParallelism::kAllToAll};
    parallel.context = kContexts[random.Below(3)];
    JobSpec job = JobOf({{layer, layer}}, parallel);
    job.cluster.intra_node.bandwidth.bytes_per_second = kSlowLink;
    job.cluster.inter_node.bandwidth.bytes_per_second = kSlowLink;
    const StageCostModel costs(job);
    const Stage stage{.module = ModuleId(0),
                      .first_layer = LayerId(1),
                      .num_layers = 1,
                      .rank = RankId(0),
                      .segment = SegmentId(0)};
    const WorkShape shape =
        Sequences(random.Between(1, 4), 256 * random.Between(1, 32));
    const StageCost cost = costs.Cost(stage, shape, true);
    // Compute times differ by pass, so communication has to be most of the
    // time.
    const StageCostModel quick(JobOf({{layer, layer}}, parallel));
    if (cost.forward < 4 * quick.Cost(stage, shape, true).forward) continue;
    ++checked;
    ExpectCompleteBackwards(cost);
  }
  EXPECT_GT(checked, 100);
}

// Without communication there is nothing to hide: one pass is the sum of two.
TEST(PassForms, WithoutParallelismAFusedBackwardIsTheSumOfBothGradients) {
  for (const LayerSpec& layer : EveryLayerKind()) {
    const StageCostModel costs(JobOf({{layer, layer}}, {}));
    const StageCost cost = costs.Cost({.module = ModuleId(0),
                                       .first_layer = LayerId(1),
                                       .num_layers = 1,
                                       .rank = RankId(0),
                                       .segment = SegmentId(0)},
                                      Sequences(2, 2048), true);
    EXPECT_EQ(cost.fused, cost.backward + cost.weight_grad);
    EXPECT_EQ(cost.backward_gap, kZero);
    EXPECT_EQ(cost.fused_gap, kZero);
  }
}

}  // namespace
}  // namespace pipeloom::emulator
