#include "planner/search/exact_search.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "planner/bounds/lower_bound.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/branching_problems.h"
#include "tests/planner/small_problems.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BranchingProblem;
using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;

SearchBudget Nodes(int64_t count) {
  SearchBudget budget;
  budget.max_evaluations = count;
  return budget;
}

ExactResult Solve(const StageGraph& graph, int64_t nodes = 2'000'000) {
  return ExactSearch(FlatGraph(graph), kNoLimit, {}, Nodes(nodes));
}

// The result's schedule is legal and takes as long as it says.
void ExpectSound(const StageGraph& graph, const ExactResult& result) {
  const FlatGraph flat(graph);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       TimeSchedule(graph, OrdersOf(flat, result.sequence)));
  EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
  EXPECT_EQ(schedule.step_time().count(), result.step_time);
  EXPECT_EQ(Retimer(flat).Retime(result.sequence), result.step_time);
  EXPECT_LE(LowerBound(flat), result.step_time);
}

void ExpectOptimal(const StageGraph& graph) {
  const auto optimum = BruteForceStepTime(graph);
  const ExactResult result = Solve(graph);
  EXPECT_TRUE(result.proven);
  EXPECT_EQ(result.sequence.empty(), !optimum.has_value());
  if (!optimum.has_value()) return;
  EXPECT_EQ(result.step_time, optimum->count());
  ExpectSound(graph, result);
}

TEST(ExactSearchTest, FindsTheOptimumOfPipelinesWithUpToTwelveTasks) {
  int problems = 0;
  for (uint64_t seed = 0; problems < 1500; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    ExpectOptimal(*graph);
  }
}

TEST(ExactSearchTest, FindsTheOptimumOfBranchingProblemsWithTightMemory) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    ExpectOptimal(BranchingProblem(seed, 11));
  }
}

// Returns the number of problems of each kind; PIPELOOM_EXACT_PROBLEMS asks for
// more.
int LargerProblems() {
  const char* const text = std::getenv("PIPELOOM_EXACT_PROBLEMS");
  return text == nullptr ? 500 : std::atoi(text);
}

TEST(ExactSearchTest, ProvesEveryPipelineWithUpTo24Tasks) {
  int problems = 0;
  int64_t nodes = 0;
  for (uint64_t seed = 0; problems < LargerProblems(); ++seed) {
    const auto graph = SmallProblem(seed, 24);
    if (!graph.has_value() || graph->num_tasks() <= 12) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ExactResult result = Solve(*graph);
    EXPECT_TRUE(result.proven);
    ExpectSound(*graph, result);
    nodes += result.nodes;
  }
  RecordProperty("nodes", static_cast<int>(nodes));
}

TEST(ExactSearchTest, ProvesEveryBranchingProblemWithUpTo24Tasks) {
  int64_t nodes = 0;
  const auto problems = static_cast<uint64_t>(LargerProblems());
  for (uint64_t seed = 0; seed < problems; ++seed) {
    const StageGraph graph = BranchingProblem(seed, 24);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ExactResult result = Solve(graph);
    EXPECT_TRUE(result.proven);
    if (!result.sequence.empty()) ExpectSound(graph, result);
    nodes += result.nodes;
  }
  RecordProperty("nodes", static_cast<int>(nodes));
}

TEST(ExactSearchTest, KeepsAnIncumbentThatIsOptimalAndProvesIt) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = BranchingProblem(seed, 14);
    const ExactResult first = Solve(graph);
    if (first.sequence.empty()) continue;
    const ExactResult again = ExactSearch(FlatGraph(graph), first.step_time,
                                          first.sequence, Nodes(2'000'000));
    EXPECT_TRUE(again.proven);
    EXPECT_EQ(again.sequence, first.sequence);
    EXPECT_LE(again.nodes, first.nodes);
  }
}

TEST(ExactSearchTest, ABudgetThatEndsFirstLeavesTheIncumbent) {
  const StageGraph graph =
      UniformGraph({.ranks = 3, .microbatches = 3, .limit = Bytes(2000)});
  const FlatGraph flat(graph);
  std::vector<int32_t> by_id(static_cast<size_t>(graph.num_tasks()));
  std::iota(by_id.begin(), by_id.end(), 0);
  const int64_t time = Retimer(flat).Retime(by_id);
  const ExactResult result = ExactSearch(flat, time, by_id, Nodes(1));
  EXPECT_FALSE(result.proven);
  EXPECT_EQ(result.step_time, time);
  EXPECT_EQ(result.sequence, by_id);
  const ExactResult proof = ExactSearch(flat, time, by_id, Nodes(100'000));
  EXPECT_TRUE(proof.proven);
  EXPECT_LT(proof.step_time, time);
}

TEST(ExactSearchTest, LeavesLargeProblemsAlone) {
  const StageGraph graph = UniformGraph({.ranks = 8, .microbatches = 8});
  const ExactResult result = Solve(graph);
  EXPECT_FALSE(result.proven);
  EXPECT_EQ(result.nodes, 0);
}

TEST(ExactSearchTest, SolvesTheEmptyProblem) {
  const ExactResult result = Solve(StageGraph());
  EXPECT_TRUE(result.proven);
  EXPECT_EQ(result.step_time, 0);
}

}  // namespace
}  // namespace pipeloom::planner
