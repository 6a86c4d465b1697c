// The bytes that a layer keeps for each operator group, compared with numbers
// from other sources.
#include "emulator/stage/layer_memory.h"

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "emulator/cost/profile_cost.h"
#include "emulator/stage/layer_price.h"
#include "emulator/stage/pass_scratch.h"
#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

using enum OperatorGroup;

constexpr int64_t kTokens = 8192;

Bytes PartOf(const LayerActivations& kept, OperatorGroup group) {
  return kept.groups[static_cast<size_t>(group)].trained;
}

StageCost PriceOf(const LayerSpec& layer, const ParallelLayout& parallel,
                  const WorkShape& shape, bool frozen = false) {
  JobSpec job = JobOf({{layer}}, parallel);
  if (frozen) job.training.frozen_modules = {"m0"};
  const StageCostModel costs(job);
  return costs.Cost({.module = ModuleId(0),
                     .first_layer = LayerId(0),
                     .num_layers = 1,
                     .rank = RankId(0)},
                    shape, /*needs_input_grad=*/true);
}

const GroupCost& GroupOf(const StageCost& cost, OperatorGroup group) {
  return cost.groups[static_cast<size_t>(group)];
}

TEST(LayerMemory, GroupsOfALlamaLayerAreWhatTheHeaderSays) {
  const LayerActivations kept =
      ActivationsOf(Llama3Block(), Sequences(1, kTokens), {});
  EXPECT_EQ(kept.trained, Bytes(kTokens * 139'392));
  EXPECT_EQ(PartOf(kept, kNorms), Bytes(kTokens * 16'384));
  EXPECT_EQ(PartOf(kept, kProjections), Bytes(kTokens * 69'632));
  EXPECT_EQ(PartOf(kept, kCoreAttention), Bytes(kTokens * 8'320));
  EXPECT_EQ(PartOf(kept, kActivations), Bytes(kTokens * 28'672));
  EXPECT_EQ(PartOf(kept, kMoeActivations), Bytes(0));
  Bytes rest = kept.trained;
  for (const OperatorGroup g : kAllOperatorGroups) rest -= PartOf(kept, g);
  EXPECT_EQ(rest, Bytes(kTokens * 4 * 4096));
}

// Korthikanti et al., arXiv:2205.05198: sbh(34 + 5as/h) bytes, divided by t
// with sequence parallelism; selective recomputation of the attention's core
// leaves 34sbh/t. Here there is no dropout, which has masks of 2sbh and as of
// the 5as^2b; a fused core keeps 4as in place of its scores, and its
// recomputation also makes the 2sbh again that the output projection reads.
TEST(LayerMemory, KeepsWhatMegatronsFormulaSaysWithoutDropoutAndScores) {
  for (const int32_t tp : {1, 2, 8}) {
    for (const int64_t heads : {32, 96}) {
      SCOPED_TRACE(::testing::Message() << "tp " << tp << " heads " << heads);
      LayerSpec layer = Llama3Block();
      layer.hidden = heads * 128;
      layer.attention.heads = heads;
      layer.attention.kv_heads = heads;
      layer.ffn = {.hidden = 4 * layer.hidden};
      const int64_t s = 2048;
      const int64_t b = 3;
      const int64_t sbh = s * b * layer.hidden;
      const LayerActivations kept =
          ActivationsOf(layer, Sequences(b, s), {.tp = tp});
      const int64_t scores = 5 * heads * s * s * b;  // sbh * 5as/h.
      ASSERT_EQ(sbh * 5 * heads * s / layer.hidden, scores);
      const int64_t published = 34 * sbh + scores;
      const int64_t masks = 2 * sbh;
      EXPECT_EQ(kept.trained.count() * tp,
                published - masks - scores + 4 * heads * s * b);
      const int64_t selective = 34 * sbh;
      EXPECT_EQ((kept.trained - PartOf(kept, kCoreAttention)).count() * tp,
                selective - masks - 2 * sbh);
    }
  }
}

TEST(LayerMemory, EachGpuKeepsAtLeastOneHeadOfKeysAndValues) {
  const LayerSpec layer = Llama3Block();  // 8 of 128.
  LayerSpec more = layer;
  more.attention.kv_heads = 16;
  const auto projected = [](const LayerSpec& of, int32_t tp) {
    return PartOf(ActivationsOf(of, Sequences(1, kTokens), {.tp = tp}),
                  kProjections);
  };
  EXPECT_LT(projected(layer, 8), projected(more, 8));
  EXPECT_EQ(projected(layer, 16), projected(more, 16));
  // A sixteenth of the queries and of the feed-forward; a key and a value.
  EXPECT_EQ(projected(layer, 16),
            Bytes(kTokens * (2 * (4096 + 2 * 14336) / 16 + 2 * 2 * 128)));
  EXPECT_EQ(
      OperatorCheckpointBytes(layer, Sequences(1, kTokens), {.tp = 16}, false),
      OperatorCheckpointBytes(more, Sequences(1, kTokens), {.tp = 16}, false));
}

TEST(LayerMemory, GroupsArePartsOfWhatIsKeptAndOfTheForward) {
  for (const ParallelLayout& parallel :
       {ParallelLayout{}, ParallelLayout{.tp = 2}, ParallelLayout{.cp = 2}}) {
    int kind = 0;
    for (const LayerSpec& layer : EveryLayerKind()) {
      for (const bool frozen : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << "layer " << kind << " tp " << parallel.tp << " cp "
                     << parallel.cp << " frozen " << frozen);
        WorkShape shape = Sequences(2, kTokens);
        const StageCost cost = PriceOf(layer, parallel, shape, frozen);
        Bytes sum;
        Duration again{};
        for (const OperatorGroup g : kAllOperatorGroups) {
          const GroupCost& group = GroupOf(cost, g);
          EXPECT_GE(group.bytes, Bytes(0));
          EXPECT_EQ(group.again > kZero, group.bytes > Bytes(0))
              << NameOf(g) << ": what is made takes time";
          EXPECT_LE(group.again, cost.forward) << NameOf(g);
          sum += group.bytes;
          again += group.again;
        }
        EXPECT_LE(sum, cost.activations);
        // The norms of a frozen layer may count twice.
        if (!frozen) {
          EXPECT_LE(again, cost.forward);
        }
      }
      ++kind;
    }
  }
}

TEST(LayerMemory, NormsAndActivationsAreAThirdOfTheBytesAtElementwiseCost) {
  for (const LayerSpec& layer : {Llama3Block(), Qwen32bBlock(), Vit5bBlock()}) {
    const StageCost cost = PriceOf(layer, {}, Sequences(1, kTokens));
    const GroupCost& norms = GroupOf(cost, kNorms);
    const GroupCost& activations = GroupOf(cost, kActivations);
    const double share =
        static_cast<double>((norms.bytes + activations.bytes).count()) /
        static_cast<double>(cost.activations.count());
    EXPECT_GT(share, 0.3);
    EXPECT_LT(share, 0.45);
    EXPECT_LT(ToSeconds(norms.again + activations.again),
              0.1 * ToSeconds(cost.forward));
  }
}

TEST(LayerMemory, ExpertsActivationsAreAGroupOfTheirOwn) {
  const LayerSpec layer = MoeBlock();
  const StageCost cost = PriceOf(layer, {}, Sequences(1, kTokens));
  EXPECT_EQ(GroupOf(cost, kActivations).bytes, Bytes(0));
  EXPECT_EQ(GroupOf(cost, kMoeActivations).bytes,
            Bytes(kTokens * 2 *
                  (layer.ffn.experts_per_token + layer.ffn.shared_experts) *
                  layer.ffn.expert_hidden));
}

// Products in fp8 keep their inputs in one byte.
TEST(LayerMemory, GroupsFollowThePrecision) {
  const auto kept = [](Precision precision) {
    return ActivationsOf(Llama3Block(), Sequences(1, kTokens), {}, precision);
  };
  const LayerActivations whole = kept(Precision::kBf16);
  const LayerActivations half = kept(Precision::kFp8);
  const LayerActivations wide = kept(Precision::kFp32);
  for (const OperatorGroup g : {kNorms, kActivations}) {
    EXPECT_EQ(2 * PartOf(half, g), PartOf(whole, g));
    EXPECT_EQ(PartOf(wide, g), 2 * PartOf(whole, g));
  }
  EXPECT_EQ(PartOf(half, kProjections), PartOf(whole, kProjections));
}

TEST(LayerMemory, AFrozenLayersProjectionsStartFromItsNorms) {
  const StageCost trained = PriceOf(Llama3Block(), {}, Sequences(1, kTokens));
  const StageCost frozen =
      PriceOf(Llama3Block(), {}, Sequences(1, kTokens), /*frozen=*/true);
  EXPECT_EQ(GroupOf(frozen, kNorms).bytes, Bytes(0));
  EXPECT_EQ(GroupOf(frozen, kActivations).bytes, Bytes(0));
  EXPECT_EQ(
      GroupOf(frozen, kProjections).again,
      GroupOf(trained, kProjections).again + GroupOf(trained, kNorms).again);
}

TEST(ScratchOfLayersTest, AForwardHoldsAWiderInputOfALaterLayer) {
  ScratchOfLayers scratch;
  const auto add = [&](int64_t input, int64_t forward) {
    scratch.Add(Bytes(input), Bytes(0), Bytes(0), {.forward = Bytes(forward)});
  };
  add(20, 40);
  EXPECT_EQ(scratch.Get().forward, Bytes(40));
  add(10, 45);  // The stage's input is in the account all the time.
  EXPECT_EQ(scratch.Get().forward, Bytes(45));
  add(60, 30);
  EXPECT_EQ(scratch.Get().forward, Bytes(60 - 20 + 30));
  add(30, 10);
  EXPECT_EQ(scratch.Get().forward, Bytes(60 - 20 + 30));
}

}  // namespace
}  // namespace pipeloom::emulator
