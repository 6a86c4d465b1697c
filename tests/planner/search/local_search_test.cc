#include "planner/search/local_search.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/retime.h"
#include "planner/search/exact_search.h"
#include "planner/search/search_graph.h"
#include "tests/planner/branching_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BranchingProblem;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;

// A legal order of the graph, with its step time.
Answer AnyAnswer(const FlatGraph& flat) {
  Answer answer;
  FeasibilityResult decided = DecideFeasibility(flat);
  if (decided.verdict != Feasibility::kLegal) return answer;
  Retimer retimer(flat);
  answer.time = retimer.Retime(decided.sequence);
  answer.sequence = std::move(decided.sequence);
  return answer;
}

// Most small problems are solved from an order that is only legal, and none is
// left with an order that is illegal, longer, or shorter than the optimum.
TEST(SearchLocallyTest, MeetsTheOptimumOfMostSmallProblems) {
  int solved = 0;
  int begun = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = BranchingProblem(seed, 18);
    const FlatGraph flat(graph);
    const Answer first = AnyAnswer(flat);
    if (first.sequence.empty()) continue;
    const ExactResult exact =
        ExactSearch(flat, first.time, first.sequence, SearchBudget{});
    ASSERT_TRUE(exact.proven);
    const int64_t optimum =
        exact.sequence.empty() ? first.time : exact.step_time;
    if (first.time == optimum) continue;
    ++begun;
    Answer answer = first;
    const int64_t made =
        SearchLocally(flat, optimum, seed, {.max_evaluations = 400}, &answer);
    EXPECT_LE(made, 400);
    EXPECT_LE(answer.time, first.time);
    EXPECT_GE(answer.time, optimum);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, OrdersOf(flat, answer.sequence)));
    EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
    EXPECT_EQ(schedule.step_time().count(), answer.time);
    solved += answer.time == optimum ? 1 : 0;
  }
  EXPECT_GT(begun, 100);
  EXPECT_GE(solved, begun * 9 / 10) << solved << " of " << begun;
}

TEST(SearchLocallyTest, IsTheSameForAnyNumberOfThreads) {
  const StageGraph graph = RandomGraph(3, {.with_memory_limits = true});
  const FlatGraph flat(graph);
  const Answer first = AnyAnswer(flat);
  ASSERT_FALSE(first.sequence.empty());
  for (const int32_t workers : {1, 2, 5}) {
    Answer alone = first;
    Answer together = first;
    const int64_t made = SearchLocally(
        flat, /*bound=*/0, /*seed=*/7,
        {.max_evaluations = 301, .threads = 1, .workers = workers}, &alone);
    EXPECT_EQ(SearchLocally(
                  flat, /*bound=*/0, /*seed=*/7,
                  {.max_evaluations = 301, .threads = 4, .workers = workers},
                  &together),
              made);
    EXPECT_LE(made, 301);
    EXPECT_EQ(alone.time, together.time);
    EXPECT_EQ(alone.sequence, together.sequence);
  }
}

// Two tasks of one rank, one after the other: no move and no window is another
// order.
TEST(SearchLocallyTest, EndsWhereNothingCanBeChanged) {
  FlatGraph chain;
  chain.num_ranks = 1;
  chain.num_tasks = 2;
  chain.duration = {5, 7};
  chain.alloc = {0, 0};
  chain.free = {0, 0};
  chain.rank = {0, 0};
  chain.pass = {Pass::kForward, Pass::kBackward};
  chain.pred_offset = {0, 0, 1};
  chain.pred = {0};
  chain.pred_delay = {0};
  chain.succ_offset = {0, 1, 1};
  chain.succ = {1};
  chain.succ_delay = {0};
  chain.capacity = {kNoLimit};
  chain.epilogue = {0};
  Answer answer{.time = 12, .sequence = {0, 1}};
  EXPECT_EQ(SearchLocally(chain, /*bound=*/0, /*seed=*/1,
                          {.max_evaluations = 20}, &answer),
            20);
  EXPECT_EQ(answer.time, 12);
}

}  // namespace
}  // namespace pipeloom::planner
