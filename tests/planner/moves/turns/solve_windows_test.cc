#include "planner/moves/turns/solve_windows.h"

#include <gtest/gtest.h>

#include <vector>

#include "planner/construct/list_scheduler.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/retime.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/moves/move_problem.h"
#include "tests/planner/small_problems.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;

// A sequence with its ends and tails.
struct Timed {
  Timed(const FlatGraph& g, std::vector<int32_t> tasks)
      : sequence(std::move(tasks)), tail(sequence.size(), 0) {
    Retimer retimer(g);
    time = retimer.Retime(sequence);
    end.assign(retimer.end().begin(), retimer.end().end());
    std::vector<int64_t> after(g.epilogue.begin(), g.epilogue.end());
    for (size_t i = sequence.size(); i-- > 0;) {
      const int32_t t = sequence[i];
      int64_t rest = after[g.rank[t]];
      for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
        rest = std::max(rest, g.succ_delay[e] + tail[g.succ[e]]);
      }
      tail[t] = after[g.rank[t]] = g.duration[t] + rest;
    }
  }

  std::vector<int32_t> sequence;
  int64_t time = 0;
  std::vector<int64_t> end{};
  std::vector<int64_t> tail;
};

TEST(WindowSolverTest, AWindowOfAllTasksHasTheOptimumOfTheStep) {
  int problems = 0;
  int gains = 0;
  for (uint64_t seed = 0; problems < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomGraphOptions options;
    options.max_ranks = 3;
    options.max_segments = 2;
    options.max_microbatches = 3;
    const StageGraph graph = RandomGraph(seed, options);
    if (graph.num_tasks() > 10) continue;
    ++problems;
    const FlatGraph flat(graph);
    ListScheduler lists(flat);
    lists.Run({.prefer = Prefer::kBackward});
    const Timed first(flat, {lists.sequence().begin(), lists.sequence().end()});
    WindowSolver solver(flat);
    const bool better = solver.Solve(first.sequence, 0, graph.num_tasks(),
                                     first.end, first.tail, 1'000'000);
    ASSERT_TRUE(solver.proven());
    const int64_t time =
        better ? Retimer(flat).Retime(solver.order()) : first.time;
    EXPECT_EQ(time, BruteForceStepTime(graph)->count());
    gains += better;
  }
  EXPECT_GE(gains, 10);
}

TEST(WindowSolverTest, AGainKeepsTheLimitsAndAllTasksOutsideTheWindow) {
  int gains = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomGraphOptions options;
    options.max_ranks = 4;
    options.max_microbatches = 8;
    options.with_memory_limits = true;
    const FlatGraph flat(RandomGraph(seed, options));
    ListScheduler lists(flat);
    if (!lists.CanRun()) continue;
    lists.Run({});
    const Timed first(flat, {lists.sequence().begin(), lists.sequence().end()});
    WindowSolver solver(flat);
    const size_t size = std::min<size_t>(12, first.sequence.size());
    for (size_t begin = 0; begin + size <= first.sequence.size(); ++begin) {
      if (!solver.Solve(first.sequence, begin, static_cast<int32_t>(size),
                        first.end, first.tail, 2000)) {
        continue;
      }
      ++gains;
      std::vector<int32_t> after = first.sequence;
      std::copy(solver.order().begin(), solver.order().end(),
                after.begin() + static_cast<int64_t>(begin));
      EXPECT_TRUE(std::is_permutation(after.begin(), after.end(),
                                      first.sequence.begin()));
      EXPECT_TRUE(FitsMemory(flat, after));
      EXPECT_LE(Retimer(flat).Retime(after), first.time);
    }
  }
  EXPECT_GE(gains, 50);
}

TEST(SolveWindowsTest, KeepsToItsRoundsGainsOftenAndEndsWhereNothingCanGain) {
  int gains = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem problem(UnequalPipeline(seed), seed);
    SolveWindows move(*problem.state);
    problem.Run(&move, 1);
    EXPECT_EQ(problem.state->evaluations(), 1);
    int64_t before = 0;
    for (int round = 0; before < problem.state->evaluations(); ++round) {
      ASSERT_LT(round, 1000);
      before = problem.state->evaluations();
      problem.Run(&move, 50);
      EXPECT_LE(problem.state->evaluations(), before + 50);
      ExpectLegalBest(problem);
    }
    gains += problem.state->overall().time < problem.first;
  }
  EXPECT_GE(gains, 10);
}

TEST(SolveWindowsTest, NeverBeatsTheOptimum) {
  EXPECT_GE(CheckAgainstOptimum<SolveWindows>(60), 30);
}

}  // namespace
}  // namespace pipeloom::planner
