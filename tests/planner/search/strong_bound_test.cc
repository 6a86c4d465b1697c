#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "planner/bounds/lower_bound.h"
#include "planner/search/exact_search.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/branching_problems.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BranchingProblem;
using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;

FlatGraph WithoutLimits(FlatGraph graph) {
  for (int64_t& capacity : graph.capacity) capacity = kNoLimit;
  return graph;
}

NamedBound Strong(const FlatGraph& graph) {
  return StrongLowerBound(graph, SearchBudget{});
}

TEST(StrongBoundTest, IsNeverAboveTheOptimumOfPipelines) {
  int problems = 0;
  int at_optimum = 0;
  int by_memory = 0;
  for (uint64_t seed = 0; problems < 2000; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FlatGraph flat(*graph);
    const NamedBound cheap = CheapLowerBound(flat);
    const NamedBound strong = Strong(flat);
    EXPECT_GE(cheap.time, CheapLowerBound(WithoutLimits(flat)).time);
    EXPECT_GE(strong.time, cheap.time);
    const auto optimum = BruteForceStepTime(*graph);
    if (!optimum.has_value()) continue;
    EXPECT_LE(cheap.time, optimum->count()) << cheap.source;
    EXPECT_LE(strong.time, optimum->count()) << strong.source;
    at_optimum += strong.time == optimum->count();
    by_memory += std::string(strong.source) == "memory";
  }
  EXPECT_GT(at_optimum, problems / 2);
  EXPECT_GT(by_memory, 0);
}

TEST(StrongBoundTest, IsNeverAboveTheOptimumOfParallelEncoders) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = BranchingProblem(seed, 12);
    const FlatGraph flat(graph);
    const auto optimum = BruteForceStepTime(graph);
    if (!optimum.has_value()) continue;
    const NamedBound strong = Strong(flat);
    EXPECT_LE(strong.time, optimum->count()) << strong.source;
    EXPECT_GE(strong.time, CheapLowerBound(flat).time);
  }
}

TEST(StrongBoundTest, IsNeverAboveWhatTheExactSearchProves) {
  SearchBudget budget;
  budget.max_evaluations = 5000;
  int proven = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = BranchingProblem(seed, 24);
    const FlatGraph flat(graph);
    const ExactResult exact = ExactSearch(flat, kNoLimit, {}, budget);
    if (!exact.proven || exact.sequence.empty()) continue;
    ++proven;
    EXPECT_LE(Strong(flat).time, exact.step_time);
  }
  EXPECT_GT(proven, 100);
}

// The graph with one microbatch that takes `factor` times as long as before.
StageGraph WithDominant(const StageGraph& graph, int64_t factor) {
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (Task& task : tasks) {
    if (task.microbatch == MicrobatchId(0)) task.duration *= factor;
  }
  auto dominant =
      StageGraph::Create("dominant", graph.ranks(), graph.module_names(),
                         std::move(tasks), graph.edges());
  PIPELOOM_CHECK(dominant.ok());
  return *std::move(dominant);
}

// Where one microbatch's chain nearly fills the step the bounds are weakest
// (docs/evaluation/planner.md): here the optimum is known.
TEST(StrongBoundTest, IsNeverAboveTheOptimumWithADominantMicrobatch) {
  SearchBudget budget;
  budget.max_evaluations = 20'000;
  int proven = 0;
  double cheap_gap = 0;
  double strong_gap = 0;
  for (uint64_t seed = 0; proven < 300; ++seed) {
    const auto graph = SmallProblem(seed, 30);
    if (!graph.has_value()) continue;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FlatGraph flat(
        WithDominant(*graph, static_cast<int64_t>(2 + seed % 6)));
    const ExactResult exact = ExactSearch(flat, kNoLimit, {}, budget);
    if (!exact.proven || exact.sequence.empty() || exact.step_time == 0) {
      continue;
    }
    ++proven;
    const int64_t cheap = CheapLowerBound(flat).time;
    const int64_t strong = Strong(flat).time;
    EXPECT_LE(cheap, strong);
    EXPECT_LE(strong, exact.step_time);
    const auto optimum = static_cast<double>(exact.step_time);
    cheap_gap += 1 - static_cast<double>(cheap) / optimum;
    strong_gap += 1 - static_cast<double>(strong) / optimum;
  }
  RecordProperty("cheap_gap", std::to_string(cheap_gap / proven));
  RecordProperty("strong_gap", std::to_string(strong_gap / proven));
}

// One forward at a time: forward, backward and weight gradient of a microbatch
// on the first of p ranks, with the way to the last rank and back between them,
// are repeated for each of the first and last microbatch at least.
TEST(StrongBoundTest, OneActivationOnOneRankOfTwo) {
  const StageGraph graph = UniformGraph({.ranks = 2,
                                         .microbatches = 2,
                                         .split_backward = true,
                                         .limit = Bytes(1000)});
  // Load 6; idle 2 while the second rank turns each microbatch around.
  const NamedBound bound = CheapLowerBound(FlatGraph(graph));
  EXPECT_EQ(bound.time, Milliseconds(10).count());
  EXPECT_STREQ(bound.source, "memory");
}

// Zero-bubble schedules at the memory of 1F1B are optimal: 3 m + p - 1 with
// equal passes; the bound needs no memory for it.
TEST(StrongBoundTest, ZeroBubbleAtTheMemoryOf1F1B) {
  for (const int32_t p : {2, 4, 8}) {
    const StageGraph graph = UniformGraph({.ranks = p,
                                           .microbatches = 3 * p,
                                           .split_backward = true,
                                           .limit = Bytes(1000 * p)});
    EXPECT_EQ(CheapLowerBound(FlatGraph(graph)).time,
              Milliseconds(3 * 3 * p + p - 1).count());
  }
}

// V schedules (Qi et al. 2024) with unit passes, two chunks a rank: the last
// rank's first backward cannot start before (3 p - 1) passes; with k
// activations it has worked k of them by then.
TEST(StrongBoundTest, VSchedulesWithTightMemory) {
  for (const int32_t p : {4, 8}) {
    const int32_t m = 3 * p;
    for (int32_t k = p; k <= 2 * p; ++k) {
      const StageGraph graph = UniformGraph({.ranks = p,
                                             .chunks = 2,
                                             .microbatches = m,
                                             .vee = true,
                                             .split_backward = true,
                                             .limit = Bytes(1000 * k)});
      const NamedBound bound = CheapLowerBound(FlatGraph(graph));
      EXPECT_GE(bound.time, Milliseconds(6 * m + 3 * p - 1 - k).count())
          << "p " << p << ", " << k << " activations";
    }
  }
}

TEST(StrongBoundTest, WindowsSeeThatFewLongTasksMeet) {
  // Two microbatches need the second rank at once: chains and preemptive load
  // allow 1 less than any schedule needs.
  int better = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto graph = SmallProblem(seed, 40);
    if (!graph.has_value()) continue;
    const FlatGraph flat = WithoutLimits(FlatGraph(*graph));
    better += Strong(flat).time > CheapLowerBound(flat).time;
  }
  EXPECT_GT(better, 20);
}

TEST(StrongBoundTest, AnEndedBudgetLeavesTheCheapBound) {
  const StageGraph graph = UniformGraph({.chunks = 2, .vee = true});
  const FlatGraph flat(graph);
  SearchBudget budget;
  budget.max_evaluations = 0;
  EXPECT_GE(StrongLowerBound(flat, budget).time, CheapLowerBound(flat).time);
}

}  // namespace
}  // namespace pipeloom::planner
