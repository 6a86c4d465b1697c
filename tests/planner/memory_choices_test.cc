#include "planner/memory_choices.h"

#include <gtest/gtest.h>

#include "tests/support/small_job.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::SmallVlmJob;

// One stage for each of the job's modules.
Partition OneStagePerModule(const JobSpec& job) {
  Partition partition{.num_ranks = 1, .num_segments = 1};
  for (const ModuleId m : job.model.modules.ids()) {
    partition.stages.push_back(
        {.module = m,
         .first_layer = LayerId(0),
         .num_layers = job.model.modules[m].layers.size(),
         .rank = RankId(0),
         .segment = SegmentId(0)});
  }
  partition.sub_microbatch_instances =
      IdVector<ModuleId, int64_t>(job.model.modules.size(), 0);
  return partition;
}

TEST(MemoryChoicesTest, GoFromNothingToEverythingInOrderOfRecomputedWork) {
  const JobSpec job = SmallVlmJob();
  const Partition partition = OneStagePerModule(job);
  const std::vector<RecomputeChoice> choices = MemoryChoices(job, partition);
  ASSERT_EQ(choices.size(), 4u);  // Subsets of encoder and backbone.
  EXPECT_EQ(choices.front(), RecomputeChoice(2, false));
  EXPECT_EQ(choices.back(), RecomputeChoice(2, true));
  int64_t last = -1;
  for (const RecomputeChoice& choice : choices) {
    int64_t recomputed = 0;
    for (const StageId s : choice.ids()) {
      if (choice[s]) {
        recomputed += Parameters(job.model.modules[partition.stages[s].module]);
      }
    }
    EXPECT_GE(recomputed, last);
    last = recomputed;
  }
}

TEST(MemoryChoicesTest, OnlyKeepingIsTriedWhenTheJobAllowsNothingElse) {
  JobSpec job = SmallVlmJob();
  job.training.memory_strategies = {MemoryStrategy::kKeep};
  EXPECT_EQ(MemoryChoices(job, OneStagePerModule(job)).size(), 1u);
}

TEST(MemoryChoicesTest, AFrozenEncoderHasNothingToRecompute) {
  JobSpec job = SmallVlmJob();
  job.training.frozen_modules = {"encoder"};
  const auto choices = MemoryChoices(job, OneStagePerModule(job));
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_FALSE(choices.back()[StageId(0)]);
  EXPECT_TRUE(choices.back()[StageId(1)]);
}

}  // namespace
}  // namespace pipeloom::planner
