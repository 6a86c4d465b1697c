#include "emulator/cluster/order_epilogues.h"

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "emulator/cluster/emulate_cluster.h"
#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using testing::RandomGraph;
using testing::RandomOrders;

constexpr Duration kOptimizer = Nanoseconds(700);

// Returns random updates of the graph's ranks, whose parts are stages that it
// has tasks of. Weights are not gathered, and optimizers take equally long.
StepUpdate RandomUpdate(const StageGraph& graph, Random& random) {
  StepUpdate update{.overlaps = true};
  update.ranks.resize(graph.num_ranks());
  for (const RankId r : graph.rank_ids()) {
    RankUpdate& rank = update.ranks[r];
    for (const TaskId t : graph.tasks_of(r)) {
      const StageId stage = graph.task(t).stage;
      const auto is_it = [&](const auto& part) { return part.stage == stage; };
      if (std::any_of(rank.parts.begin(), rank.parts.end(), is_it)) continue;
      rank.parts.push_back(
          {stage, random.Between(1, 99),
           /*buckets=*/static_cast<int32_t>(random.Between(1, 5))});
    }
    if (rank.parts.empty()) continue;
    rank.reduce = Nanoseconds(random.Between(1, 60'000));
    rank.optimizer = kOptimizer;
  }
  update.waits.resize(graph.num_ranks());
  for (const RankUpdate& rank : update.ranks) {
    update.expected.push_back(rank.reduce + rank.optimizer);
  }
  return update;
}

// A replica alone.
TEST(OrderEpilogues, AStepTakesWhatTheEmulationOfItsClusterSays) {
  int shorter = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    StageGraph graph =
        RandomGraph(seed, {.max_ranks = 4, .max_microbatches = 4});
    const StepUpdate update = RandomUpdate(graph, random);
    IdVector<RankId, RankSpec> ranks = graph.ranks();
    for (const RankId r : ranks.ids()) ranks[r].epilogue = update.expected[r];
    graph = graph.WithRanks(ranks);
    ExecutionPlan plan = LowerNaively(graph, RandomOrders(graph, random));
    ASSERT_OK_AND_ASSIGN(
        const ClusterResult cluster,
        EmulateCluster({&plan}, update.ranks, {.clip_gradients = true}));
    ASSERT_OK_AND_ASSIGN(const StepTrace before, EmulateStep(plan));
    ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                         EmulateInOrder(update, {}, &plan));
    EXPECT_EQ(trace.finish, cluster.step.finish) << "seed " << seed;
    EXPECT_EQ(plan.predicted_step_time, trace.step_time());
    shorter += trace.finish < before.finish;
    // The plan is one whose emulation this is.
    ASSERT_OK_AND_ASSIGN(const StepTrace again, EmulateStep(plan));
    EXPECT_TRUE(again == trace) << "seed " << seed;
    for (const RankId r : plan.graph.rank_ids()) {
      EXPECT_EQ(EpiloguesInOrder(update, plan.graph, trace)[r],
                plan.graph.rank(r).epilogue);
      EXPECT_EQ(plan.graph.rank(r).epilogue >= kOptimizer,
                !update.ranks[r].parts.empty());
    }
  }
  EXPECT_GT(shorter, 100);
}

TEST(OrderEpilogues, BoundsHaveTheLeastOnes) {
  Random random(1);
  const StageGraph graph = RandomGraph(1, {.max_ranks = 3});
  StepUpdate update = RandomUpdate(graph, random);
  for (const RankId r : graph.rank_ids()) {
    update.least.push_back(Nanoseconds(r.value() + 1));
  }
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) rank.epilogue = Nanoseconds(100);
  ranks[RankId(0)].epilogue = kZero;  // One that trains nothing keeps none.
  const StageGraph least = WithLeastEpilogues(graph.WithRanks(ranks), update);
  for (const RankId r : graph.rank_ids()) {
    EXPECT_EQ(least.rank(r).epilogue,
              Nanoseconds(r.value() == 0 ? 0 : r.value() + 1));
  }
}

}  // namespace
}  // namespace pipeloom::emulator
