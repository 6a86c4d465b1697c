// Every problem has a legal plan or a proof that there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/search/exact_search.h"
#include "planner/search/search_graph.h"
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
using ::pipeloom::testing::RandomOrders;
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

TEST(MemoryIsShortTest, ElseEveryOrderIsLegal) {
  int roomy = 0;
  int broken = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph =
        RandomGraph(seed, {.with_memory_limits = seed % 4 != 0});
    Random random(seed);
    const auto schedule = TimeSchedule(graph, RandomOrders(graph, random));
    ASSERT_THAT(schedule.status(), IsOk());
    const bool legal = ValidateSchedule(graph, *schedule).ok();
    if (MemoryIsShort(FlatGraph(graph))) {
      broken += legal ? 0 : 1;
    } else {
      EXPECT_TRUE(legal);
      ++roomy;
    }
  }
  EXPECT_GT(roomy, 250);
  EXPECT_GT(broken, 50);
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

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Every second a pipeline of up to some hundred tasks.
StageGraph DeadlineProblem(uint64_t seed) {
  if (seed % 2 == 0) return BranchingProblem(seed, 72);
  return RandomGraph(seed,
                     {.max_microbatches = 32, .with_memory_limits = true});
}

// The search asked for an answer within a deadline: legal or proven to be
// impossible, every time. How late an answer is is recorded, and judged on
// request, in processor time, so that what else runs does not matter:
//   PIPELOOM_DEADLINE_PROBLEMS=10000 planner_tests
//     --gtest_filter=TightMemoryTest.AnswersWithinTheDeadline
// asks that 99 of 100 answers are no more than 5 ms late.
TEST(TightMemoryTest, AnswersWithinTheDeadline) {
  const int judged = FromEnvironment("PIPELOOM_DEADLINE_PROBLEMS", 0);
  const double deadline_ms = FromEnvironment("PIPELOOM_DEADLINE_MS", 2);
  const auto now_ms = [] {
    return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  };
  std::vector<double> late_ms;
  int legal = 0;
  int impossible = 0;
  int cut_short = 0;
  for (int i = 0; i < (judged > 0 ? judged : 300); ++i) {
    const uint64_t seed = 50'000 + static_cast<uint64_t>(i);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = DeadlineProblem(seed);
    const double begin = now_ms();
    SearchBudget budget;
    budget.expired = [&] { return now_ms() - begin >= deadline_ms; };
    budget.spent = [&] { return (now_ms() - begin) / deadline_ms; };
    const auto result = SearchGraph(graph, seed, budget);
    late_ms.push_back(now_ms() - begin - deadline_ms);
    cut_short += late_ms.back() >= 0 ? 1 : 0;
    if (result.ok()) {
      ++legal;
      EXPECT_THAT(ValidateSchedule(graph, result->schedule), IsOk());
    } else {
      ++impossible;
      EXPECT_EQ(DecideFeasibility(FlatGraph(graph)).verdict,
                Feasibility::kImpossible);
    }
  }
  std::sort(late_ms.begin(), late_ms.end());
  const double p99 = late_ms[(late_ms.size() - 1) * 99 / 100];
  RecordProperty("late_ms_p99", std::to_string(p99));
  RecordProperty("late_ms_worst", std::to_string(late_ms.back()));
  if (judged <= 0) return;
  std::cout << legal << " legal, " << impossible << " proven impossible, "
            << cut_short << " searched until the deadline; late: " << p99
            << " ms at 99 %, " << late_ms.back() << " ms at worst\n";
  EXPECT_LE(p99, 5);
}

}  // namespace
}  // namespace pipeloom::planner
