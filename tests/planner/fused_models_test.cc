// Two models that do not feed each other in one pipeline (RLHFuse's fused
// training): their step against one model's step after the other's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "absl/types/span.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "planner/partition_search.h"
#include "planner/plan_step.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;
using ::pipeloom::testing::SmallVlmJob;

absl::StatusOr<PlanResult> PlanSearched(const JobSpec& job,
                                        const BatchMetadata& batch,
                                        uint64_t seed, int32_t partitions) {
  const emulator::StageCostModel costs(job);
  const auto strategy = *MakeStrategy("pipeloom");
  PIPELOOM_ASSIGN_OR_RETURN(
      const PartitionSearchResult found,
      SearchPartition(*strategy, costs, batch,
                      {.partitions = partitions, .steps = 1, .seed = seed}));
  const PreparedJob prepared{.strategy = strategy.get(),
                             .costs = &costs,
                             .partition = found.partition};
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(job, batch, 0));
  SearchBudget budget;
  budget.max_evaluations = 300;
  return PlanStep(prepared,
                  {.packed = &packed, .seed = seed, .budget = budget});
}

// Of a rank's step, what neither tasks nor its epilogue take, on average.
Duration IdleTime(const PlanResult& result) {
  const StageGraph& graph = result.plan.graph;
  Duration idle{};
  for (const RankId r : graph.rank_ids()) {
    idle += result.predicted.step_time() - graph.rank(r).epilogue;
    for (const TaskId t : graph.tasks_of(r)) idle -= graph.task(t).duration;
  }
  return idle / graph.num_ranks();
}

// `job` has two modules, each a model, and token limits that both count in. Of
// the larger's idle time, alone and searched as long, `share` is saved.
void ExpectFusedSavesTheLargersBubble(const JobSpec& job,
                                      const BatchMetadata& batch, uint64_t seed,
                                      int32_t partitions, double share) {
  ASSERT_EQ(job.model.modules.size(), 2);
  ASSERT_OK_AND_ASSIGN(const PlanResult fused,
                       PlanSearched(job, batch, seed, partitions));
  Duration apart{};
  Duration larger{};
  Duration idle{};
  for (const ModuleId m : job.model.modules.ids()) {
    JobSpec one = job;
    one.model.modules = {job.model.modules[m]};
    one.training.microbatch_tokens /= 2;
    ASSERT_OK_AND_ASSIGN(const PlanResult alone,
                         PlanSearched(one, batch, seed, partitions));
    ASSERT_EQ(alone.microbatches.num_microbatches,
              fused.microbatches.num_microbatches);
    const Duration time = alone.predicted.step_time();
    apart += time;
    if (time > larger) {
      larger = time;
      idle = IdleTime(alone);
    }
  }
  EXPECT_GT(idle, kZero);
  EXPECT_LT(fused.predicted.step_time(), apart);
  EXPECT_LE(ToSeconds(fused.predicted.step_time()),
            ToSeconds(apart) - share * ToSeconds(idle))
      << "apart " << ToSeconds(apart) << " s, of which the larger is idle "
      << ToSeconds(idle) << " s";
}

// An actor and a critic of half its layers.
JobSpec SmallActorAndCritic() {
  JobSpec job = SmallVlmJob();
  ModuleSpec actor = job.model.modules[ModuleId(1)];
  ModuleSpec critic = actor;
  actor.name = "actor";
  critic.name = "critic";
  const LayerSpec head = critic.layers[LayerId(critic.layers.size() - 1)];
  critic.layers.resize(5);
  critic.layers.push_back(head);
  job.model.modules = {actor, critic};
  job.model.edges.clear();
  job.training.microbatch_tokens = 4096;
  return job;
}

TEST(FusedModelsTest, SmallModelsSaveTheBubbleOfTheLarger) {
  for (const int32_t microbatches : {4, 8}) {
    for (uint64_t seed = 5; seed < 8; ++seed) {
      SCOPED_TRACE(::testing::Message()
                   << microbatches << " microbatches, seed " << seed);
      JobSpec job = SmallActorAndCritic();
      job.training.microbatches = microbatches;
      ExpectFusedSavesTheLargersBubble(job, RandomBatch(seed, 200, 0), seed,
                                       /*partitions=*/40, /*share=*/1);
    }
  }
}

// LLaMA 33B and 13B on 8 ranks, real texts in another order each time, as many
// partitions as `pipeloom partition` tries. Other orders and numbers of
// microbatches are in docs/partition.md: not all of them save so much.
TEST(FusedModelsTest, ShippedActorAndCriticSaveTheBubbleOfTheLarger) {
  ASSERT_OK_AND_ASSIGN(const BatchMetadata texts, ShippedBatch("text.jsonl"));
  for (const int32_t microbatches : {6, 16}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(::testing::Message()
                   << microbatches << " microbatches, seed " << seed);
      ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob("rlhf-33b-13b"));
      job.parallel.dp = 1;
      job.training.microbatches = microbatches;
      BatchMetadata batch = texts;
      Random random(seed);
      random.Shuffle(absl::MakeSpan(&*batch.samples.begin(),
                                    static_cast<size_t>(batch.samples.size())));
      batch.samples.resize(400);
      ExpectFusedSavesTheLargersBubble(
          job, batch, seed, PartitionSearchOptions().partitions, /*share=*/1);
    }
  }
}

}  // namespace
}  // namespace pipeloom::planner
