// Every problem has a legal plan or a proof that there is none.
#include <gtest/gtest.h>

#include "planner/exact_search.h"
#include "planner/flat_graph.h"
#include "planner/list_scheduler.h"
#include "planner/memory_feasibility.h"
#include "planner/search_graph.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/branching_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BranchingProblem;
using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::UniformGraph;

void ExpectLegal(const StageGraph& graph,
                 const std::vector<int32_t>& sequence) {
  ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      TimeSchedule(graph, OrdersOf(FlatGraph(graph), sequence)));
  EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
}

TEST(DecideFeasibilityTest, AgreesWithBruteForceOnSmallProblems) {
  int impossible = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = BranchingProblem(seed, 11);
    const FeasibilityResult result = DecideFeasibility(FlatGraph(graph));
    const bool legal = BruteForceStepTime(graph).has_value();
    ASSERT_EQ(result.verdict,
              legal ? Feasibility::kLegal : Feasibility::kImpossible);
    if (legal) ExpectLegal(graph, result.sequence);
    impossible += legal ? 0 : 1;
  }
  EXPECT_GE(impossible, 100);
}

TEST(DecideFeasibilityTest, DecidesLargeStructuredProblemsAtTheExactByte) {
  for (const bool vee : {false, true}) {
    for (const bool split : {false, true}) {
      const auto graph = [&](int64_t limit) {
        return FlatGraph(UniformGraph({.ranks = 8,
                                       .chunks = 4,
                                       .microbatches = 24,
                                       .vee = vee,
                                       .split_backward = split,
                                       .limit = Bytes(limit)}));
      };
      EXPECT_EQ(DecideFeasibility(graph(4000)).verdict, Feasibility::kLegal);
      EXPECT_EQ(DecideFeasibility(graph(3999)).verdict,
                Feasibility::kImpossible);
    }
  }
}

TEST(DecideFeasibilityTest, SaysWhenItsBudgetIsNotEnough) {
  EXPECT_EQ(DecideFeasibility(FlatGraph(UniformGraph({.limit = Bytes(1000)})),
                              /*max_sets=*/1)
                .verdict,
            Feasibility::kUnknown);
}

// The scheduler's refusal of a microbatch that is one chain is a proof.
TEST(DecideFeasibilityTest, ConfirmsTheGuardOnPipelines) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StageGraph graph = RandomGraph(seed, {.with_memory_limits = true});
    IdVector<RankId, RankSpec> ranks = graph.ranks();
    for (const RankId r : ranks.ids()) {
      RankMemory& memory = ranks[r].memory;
      memory.limit = Bytes(1 + memory.limit.count() * 3 / 4);
    }
    graph = graph.WithRanks(std::move(ranks));
    const FlatGraph flat(graph);
    EXPECT_EQ(DecideFeasibility(flat).verdict, ListScheduler(flat).CanRun()
                                                   ? Feasibility::kLegal
                                                   : Feasibility::kImpossible);
  }
}

struct Counts {
  int planned = 0;
  int impossible = 0;
  int refused = 0;  // Legal, but the search says that there is no plan.
};

Counts PlanTenThousand(bool allow_workspaces) {
  SearchBudget budget;
  budget.max_evaluations = 20;
  Counts counts;
  for (uint64_t seed = 10'000; seed < 20'000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = BranchingProblem(
        seed, 8 + static_cast<int32_t>(seed % 28), allow_workspaces);
    const auto result = SearchGraph(graph, seed, budget);
    if (result.ok()) {
      ++counts.planned;
      EXPECT_THAT(ValidateSchedule(graph, result->schedule), IsOk());
      continue;
    }
    const FeasibilityResult decided = DecideFeasibility(FlatGraph(graph));
    EXPECT_NE(decided.verdict, Feasibility::kUnknown);
    if (decided.verdict == Feasibility::kLegal) {
      ++counts.refused;
      ExpectLegal(graph, decided.sequence);
    } else {
      ++counts.impossible;
    }
  }
  return counts;
}

TEST(TightMemoryTest, TenThousandProblemsHaveALegalPlanOrAProofThatNoneExists) {
  const Counts counts = PlanTenThousand(/*allow_workspaces=*/false);
  EXPECT_GE(counts.planned, 5000);
  EXPECT_GE(counts.impossible, 500);
  EXPECT_EQ(counts.refused, 0);
}

// With memory that a task takes and gives back itself, the order of a
// microbatch's parallel parts matters, and the list scheduler's guard, which
// tries only some orders, refuses problems that the search then saves.
TEST(TightMemoryTest, SoDoTenThousandWithWorkspaces) {
  EXPECT_EQ(PlanTenThousand(/*allow_workspaces=*/true).refused, 0);
}

}  // namespace
}  // namespace pipeloom::planner
