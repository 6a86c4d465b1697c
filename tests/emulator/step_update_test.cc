#include "emulator/stage/step_update.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "emulator/stage/rank_update.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

using ::testing::ElementsAre;

// Two stages of one module, on a rank each or both on one.
struct TwoStages {
  JobSpec job{};
  Partition partition{};
  IdVector<RankId, RankUpdate> updates{};
  IdVector<StageId, PassTimes> passes{};

  StepUpdate Update() const {
    return MakeStepUpdate(job, partition, updates, passes);
  }
  IdVector<RankId, Duration> Epilogues() const { return Update().expected; }
};

TwoStages OnRanks(int32_t ranks) {
  TwoStages two;
  two.job = JobOf({{Llama3Block(), Llama3Block()}}, {.pp = ranks, .dp = 2});
  two.job.setup.update_contention = 0;
  two.partition.num_ranks = ranks;
  two.updates.resize(ranks);
  for (int32_t s = 0; s < 2; ++s) {
    Stage stage = StageOf(1, 0, s);
    stage.rank = RankId(ranks == 1 ? 0 : s);
    two.partition.stages.push_back(stage);
    two.passes.push_back({.forward = Nanoseconds(1000),
                          .backward = Nanoseconds(2000),
                          .longest = Nanoseconds(2000)});
    RankUpdate& update = two.updates[stage.rank];
    update.reduce += Nanoseconds(400);
    update.optimizer += Nanoseconds(7 + s);
    update.gather += Nanoseconds(200);
    update.parts.push_back({StageId(s), 100, 4});
  }
  return two;
}

TEST(StepUpdate, WithoutOverlapAllOfTheUpdateShows) {
  TwoStages two = OnRanks(2);
  two.job.setup.overlap = CommunicationOverlap::kNone;
  // Both optimizers wait for the norm, so that the slower one counts.
  EXPECT_THAT(two.Epilogues(), ElementsAre(Nanoseconds(608), Nanoseconds(608)));
}

TEST(StepUpdate, WithOverlapTheLastBucketAndTheFirstWeightsShow) {
  // A quarter of each reduction; a quarter of the first rank's gather, as the
  // second rank starts a forward later.
  EXPECT_THAT(OnRanks(2).Epilogues(), ElementsAre(Nanoseconds(100 + 8 + 50),
                                                  Nanoseconds(100 + 8 + 50)));
  // On one rank the second stage's gradients go while the first one's are
  // computed: an eighth of 800. Weights come at the same rate as before.
  EXPECT_THAT(OnRanks(1).Epilogues(), ElementsAre(Nanoseconds(100 + 15 + 50)));
}

TEST(StepUpdate, GathersThatWaitShowWhole) {
  TwoStages two = OnRanks(2);
  two.job.setup.gathers_wait = true;
  EXPECT_THAT(two.Epilogues(), ElementsAre(Nanoseconds(100 + 8 + 200),
                                           Nanoseconds(100 + 8 + 200)));
}

TEST(StepUpdate, AReductionLongerThanItsPassesShowsTheRest) {
  TwoStages two = OnRanks(1);
  two.updates[RankId(0)].reduce = Nanoseconds(8000);
  // It starts with the first bucket of the second stage, 3,500 before the end.
  EXPECT_THAT(two.Epilogues(), ElementsAre(Nanoseconds(8000 - 3500 + 15 + 50)));
  // Passes lose a half of what runs meanwhile.
  two.job.setup.update_contention = 0.5;
  EXPECT_THAT(two.Epilogues(),
              ElementsAre(Nanoseconds(4500 + 15 + 50 + (3500 + 350) / 2)));
}

TEST(StepUpdate, BetweenTwoStagesOfARankTheGradientPassesTheOthers) {
  // Stages 0 and 2 on rank 0, 1 and 3 on rank 1: the second reduction of rank 0
  // has the backward of stage 1 to itself.
  TwoStages two = OnRanks(2);
  for (int32_t s = 2; s < 4; ++s) {
    Stage stage = StageOf(1, 0, s - 2);
    stage.rank = RankId(s - 2);
    two.partition.stages.push_back(stage);
    two.passes.push_back(two.passes[StageId(0)]);
    two.updates[stage.rank].reduce = Nanoseconds(8000);
    two.updates[stage.rank].parts.push_back({StageId(s), 100, 4});
  }
  // From 1,500 into stage 2's backward: 4,500 + 1,000 before the end.
  EXPECT_EQ(two.Epilogues()[RankId(0)],
            Nanoseconds(8000 - 1500 - 2000 - 2000 + 8 + 25));
}

TEST(StepUpdate, ARankThatTrainsNothingHasNone) {
  TwoStages two = OnRanks(2);
  two.updates[RankId(0)] = {};
  const auto epilogues = two.Epilogues();
  EXPECT_EQ(epilogues[RankId(0)], kZero);
  EXPECT_GT(epilogues[RankId(1)], kZero);
}

TEST(StepUpdate, GradientsThatArePutOffHideLessOfTheirReduction) {
  TwoStages two = OnRanks(1);
  two.updates[RankId(0)].reduce = Nanoseconds(8000);
  const StepUpdate update = two.Update();
  // Stage 1 and then stage 0, each with its whole last backward.
  const std::vector<RankPasses> at_once = {
      {.last = {{8000, 10000}, {6000, 8000}}, .end = 10000}};
  EXPECT_THAT(EpiloguesOf(update, IdVector<RankId, RankPasses>(at_once)),
              ElementsAre(update.expected[RankId(0)]));
  // The weight gradients of both come last.
  const std::vector<RankPasses> put_off = {
      {.last = {{9000, 10000}, {8000, 9000}}, .end = 10000}};
  // The first bucket of eight is ready at 8,250.
  EXPECT_THAT(EpiloguesOf(update, IdVector<RankId, RankPasses>(put_off)),
              ElementsAre(Nanoseconds(8250 + 8000 - 10000 + 15 + 50)));
}

TEST(StepUpdate, WithoutOverlapTheOrderChangesNothing) {
  TwoStages two = OnRanks(1);
  two.job.setup.overlap = CommunicationOverlap::kNone;
  const StepUpdate update = two.Update();
  const std::vector<RankPasses> passes = {
      {.last = {{100, 200}, {700, 800}}, .end = 900}};
  EXPECT_EQ(EpiloguesOf(update, IdVector<RankId, RankPasses>(passes)),
            update.expected);
  EXPECT_EQ(update.least, update.expected);
}

// Returns the last passes of a rank in a random order, which ends with one of
// them, none longer than `longest`.
RankPasses RandomPasses(size_t parts, int64_t longest, Random& random) {
  RankPasses passes;
  passes.last.resize(parts);
  std::vector<size_t> order;
  for (size_t p = 0; p < parts; ++p) order.push_back(p);
  random.Shuffle(absl::MakeSpan(order));
  for (const size_t p : order) {
    passes.last[p].begin = passes.end + random.Between(0, 3000);
    passes.end = passes.last[p].begin + random.Between(0, longest);
    passes.last[p].end = passes.end;
  }
  return passes;
}

TEST(StepUpdate, NoOrderLeavesLessThanTheLeast) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    TwoStages two = OnRanks(static_cast<int32_t>(random.Between(1, 2)));
    two.job.setup.update_contention = random.Below(2) == 0 ? 0 : 0.4;
    for (PassTimes& times : two.passes) {
      times.longest = Nanoseconds(random.Between(2000, 6000));
    }
    for (RankUpdate& update : two.updates) {
      update.reduce = Nanoseconds(random.Between(0, 20000));
      for (RankUpdate::Part& part : update.parts) {
        part.parameters = random.Between(1, 100);
        part.buckets = static_cast<int32_t>(random.Between(1, 9));
      }
    }
    const StepUpdate update = two.Update();
    IdVector<RankId, RankPasses> passes;
    for (const RankUpdate& rank : two.updates) {
      // Each stage's own longest pass is at least this.
      int64_t longest = two.passes[StageId(0)].longest.count();
      for (const RankUpdate::Part& part : rank.parts) {
        longest = std::min(longest, two.passes[part.stage].longest.count());
      }
      passes.push_back(RandomPasses(rank.parts.size(), longest, random));
    }
    const IdVector<RankId, Duration> epilogues = EpiloguesOf(update, passes);
    for (const RankId r : epilogues.ids()) {
      EXPECT_LE(update.least[r], epilogues[r]) << "seed " << seed;
    }
    // It is no trivial bound: some time is left of every reduction.
    for (const RankId r : epilogues.ids()) {
      const RankUpdate& rank = two.updates[r];
      if (rank.reduce < Nanoseconds(4000)) continue;
      EXPECT_GT(update.least[r], rank.optimizer) << "seed " << seed;
    }
  }
}

TEST(StepUpdate, ARankWithAFrozenStageMayEndWithItsPasses) {
  TwoStages two = OnRanks(1);
  two.updates[RankId(0)].parts.pop_back();
  const Duration wait = two.Update().waits[RankId(0)];
  EXPECT_THAT(two.Update().least, ElementsAre(Nanoseconds(15) + wait));
  // One that has no work in the step has no passes.
  two.passes[StageId(1)] = {};
  EXPECT_GT(two.Update().least[RankId(0)], Nanoseconds(15) + wait);
}

TEST(StepUpdate, StagesThatRunAsOneAreReducedDuringItsPasses) {
  TwoStages two = OnRanks(1);
  IdVector<StageId, StageId> one;
  for (int i = 0; i < 2; ++i) one.push_back(StageId(0));
  const StepUpdate update = OnStages(two.Update(), one);
  for (const RankUpdate::Part& part : update.ranks[RankId(0)].parts) {
    EXPECT_EQ(part.stage, StageId(0));
  }
  // Their pass takes as long as both.
  EXPECT_THAT(update.longest, ElementsAre(Nanoseconds(4000)));
  EXPECT_LE(update.least[RankId(0)], two.Update().least[RankId(0)]);
}

}  // namespace
}  // namespace pipeloom::emulator
