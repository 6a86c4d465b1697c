#include "ir/plan/memory_policy.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using enum OperatorGroup;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Where checkpoints begin.
std::vector<size_t> Checkpoints(const MemoryChoice& choice) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < choice.layers.size();) {
    if (!choice.layers[i].recomputes_fully()) {
      ++i;
      continue;
    }
    begins.push_back(i);
    i = choice.CheckpointEnd(i);
  }
  return begins;
}

TEST(MemoryPolicy, ACheckpointStandsEveryPeriodOfARun) {
  EXPECT_THAT(Checkpoints(RecomputeUniform(5)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Checkpoints(RecomputeUniform(5, 2)), ElementsAre(0, 2, 4));
  EXPECT_THAT(Checkpoints(RecomputeWhole(5)), ElementsAre(0));
  EXPECT_THAT(Checkpoints(RecomputeBlock(5, 2)), ElementsAre(0, 1));
  EXPECT_THAT(Checkpoints(RecomputeGroups(5, {kNorms})), ElementsAre());
  MemoryChoice broken = RecomputeUniform(7, 3);
  broken.layers[4] = MemoryStrategy::kKeep;
  EXPECT_THAT(Checkpoints(broken), ElementsAre(0, 3, 5));
  broken.layers[1] = LayerMemory(MemoryStrategy::kRecompute, {kActivations});
  EXPECT_THAT(Checkpoints(broken), ElementsAre(0, 2, 5));
}

TEST(MemoryPolicy, NothingIsRecomputedWhereEveryLayerIsKept) {
  EXPECT_TRUE(MemoryChoice{}.keeps_everything());
  EXPECT_TRUE(RecomputeBlock(4, 0).keeps_everything());
  EXPECT_FALSE(RecomputeBlock(4, 1).keeps_everything());
  EXPECT_FALSE(RecomputeGroups(4, {kNorms}).keeps_everything());
}

TEST(MemoryPolicy, GroupsAreNamedInOrder) {
  EXPECT_EQ(ToString(OperatorGroups{kActivations, kNorms}),
            "norms+activations");
  EXPECT_EQ(ToString(OperatorGroups::FromBits(OperatorGroups::kAllBits)),
            "core_attention+norms+activations+moe_activations+projections");
  EXPECT_EQ(ToString(OperatorGroups{}), "");
}

TEST(MemoryPolicy, WhatIsInvalidIsNamed) {
  MemoryChoice choice = RecomputeUniform(3, 0);
  EXPECT_THAT(ValidateMemoryChoice(choice),
              FailsWith(kInvalid, HasSubstr("period is 0")));
  choice.period = 1;
  EXPECT_THAT(ValidateMemoryChoice(choice), IsOk());
  choice.layers[1] = LayerMemory(MemoryStrategy::kOffload, {kNorms});
  EXPECT_THAT(ValidateMemoryChoice(choice),
              FailsWith(kInvalid,
                        HasSubstr("layer 1: groups is norms, but the layer is "
                                  "offloaded")));
}

TEST(MemoryPolicy, APolicyMustFitItsStep) {
  const Partition partition{.num_ranks = 1,
                            .stages = {{.module = ModuleId(0),
                                        .first_layer = LayerId(0),
                                        .num_layers = 3,
                                        .rank = RankId(0)}}};
  Microbatches microbatches;
  microbatches.sub_microbatches.resize(2);
  for (SubMicrobatch& sub : microbatches.sub_microbatches) {
    sub.module = ModuleId(0);
  }
  const auto policy = [&](MemoryChoice choice) {
    return PolicyByStage({std::move(choice)}, partition, microbatches);
  };
  const auto check = [&](const MemoryPolicy& p) {
    return ValidateMemoryPolicy(p, partition, microbatches);
  };
  EXPECT_THAT(check(policy(RecomputeUniform(3, 2))), IsOk());
  EXPECT_EQ(policy(RecomputeUniform(3)).choice_of.size(), 2);
  EXPECT_THAT(check(policy(RecomputeUniform(2))),
              FailsWith(kInvalid, HasSubstr("the choice is for 2 layers")));
  EXPECT_THAT(check(policy(RecomputeUniform(3, -1))),
              FailsWith(kInvalid, HasSubstr("stage pair 0: period is -1")));
}

}  // namespace
}  // namespace pipeloom
