// Two models that do not feed each other in one pipeline (RLHFuse's fused
// training): their step against one model's step after the other's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "planner/layout/partition_search.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;
using ::pipeloom::testing::SmallVlmJob;

// The batch's first steps, with the partition that is found for them.
absl::StatusOr<std::vector<PlanResult>> PlanSearched(
    const JobSpec& job, const BatchMetadata& batch, uint64_t seed,
    const PartitionSearchOptions& search, int32_t steps) {
  const emulator::StageCostModel costs(job);
  const auto strategy = *MakeStrategy("pipeloom");
  PIPELOOM_ASSIGN_OR_RETURN(const PartitionSearchResult found,
                            SearchPartition(*strategy, costs, batch, search));
  const PreparedJob prepared{.strategy = strategy.get(),
                             .costs = &costs,
                             .partition = found.partition};
  SearchBudget budget;
  budget.max_evaluations = 300;
  std::vector<PlanResult> plans;
  int64_t first = 0;
  for (int32_t s = 0; s < steps; ++s) {
    PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                              partition::PackStep(job, batch, first));
    first += packed.num_samples;
    PIPELOOM_ASSIGN_OR_RETURN(
        PlanResult plan,
        PlanStep(prepared,
                 {.packed = &packed, .seed = seed, .budget = budget}));
    plans.push_back(std::move(plan));
  }
  return plans;
}

// Returns the mean time of a rank's step that neither its tasks nor its
// epilogue take.
Duration IdleTime(const PlanResult& result) {
  const StageGraph& graph = result.plan.graph;
  Duration idle{};
  for (const RankId r : graph.rank_ids()) {
    idle += result.predicted.step_time() - graph.rank(r).epilogue;
    for (const TaskId t : graph.tasks_of(r)) idle -= graph.task(t).duration;
  }
  return idle / graph.num_ranks();
}

// Step time and idle time of all plans.
struct Total {
  Duration time{};
  Duration idle{};
};

Total TotalOf(const std::vector<PlanResult>& plans) {
  Total total;
  for (const PlanResult& plan : plans) {
    total.time += plan.predicted.step_time();
    total.idle += IdleTime(plan);
  }
  return total;
}

// `job` has two modules, each a model, and token limits that both count in. Of
// the larger's idle time, alone and searched as long, at least `share` is
// saved.
void ExpectFusedSavesTheLargersBubble(const JobSpec& job,
                                      const BatchMetadata& batch, uint64_t seed,
                                      const PartitionSearchOptions& search,
                                      int32_t steps, double share) {
  ASSERT_EQ(job.model.modules.size(), 2);
  ASSERT_OK_AND_ASSIGN(const std::vector<PlanResult> fused,
                       PlanSearched(job, batch, seed, search, steps));
  const Total together = TotalOf(fused);
  Total larger;
  Duration apart{};
  for (const ModuleId m : job.model.modules.ids()) {
    JobSpec one = job;
    one.model.modules = {job.model.modules[m]};
    one.training.microbatch_tokens /= 2;
    ASSERT_OK_AND_ASSIGN(const std::vector<PlanResult> alone,
                         PlanSearched(one, batch, seed, search, steps));
    for (size_t s = 0; s < alone.size(); ++s) {
      ASSERT_EQ(alone[s].microbatches.num_microbatches,
                fused[s].microbatches.num_microbatches);
    }
    const Total total = TotalOf(alone);
    apart += total.time;
    if (total.time > larger.time) larger = total;
  }
  EXPECT_GT(larger.idle, kZero);
  EXPECT_LT(together.time, apart);
  EXPECT_LE(ToSeconds(together.time),
            ToSeconds(apart) - share * ToSeconds(larger.idle))
      << "together " << ToSeconds(together.time) << " s, apart "
      << ToSeconds(apart) << " s, of which the larger is idle "
      << ToSeconds(larger.idle) << " s: saved "
      << ToSeconds(apart - together.time) / ToSeconds(larger.idle)
      << " of that";
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
      ExpectFusedSavesTheLargersBubble(
          job, RandomBatch(seed, 200, 0), seed,
          {.partitions = 40, .steps = 1, .final_steps = 1, .seed = seed},
          /*steps=*/1, /*share=*/1);
    }
  }
}

// LLaMA 33B and 13B on 8 ranks, four steps of real texts in another order each
// time, searched as `pipeloom partition` does. With more microbatches the
// larger leaves less to fill, and not all of it is filled
// (docs/evaluation/partition.md).
TEST(FusedModelsTest, ShippedActorAndCriticSaveTheBubbleOfTheLarger) {
  ASSERT_OK_AND_ASSIGN(const BatchMetadata texts, ShippedBatch("text.jsonl"));
  struct Case {
    int32_t microbatches = 0;
    uint64_t seed = 0;
    double share = 0;
  };
  for (const auto& [microbatches, seed, share] : {Case{6, 1, 0.8}}) {
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
    ExpectFusedSavesTheLargersBubble(job, batch, seed,
                                     {.partitions = 60, .seed = seed},
                                     /*steps=*/4, share);
  }
}

}  // namespace
}  // namespace pipeloom::planner
