// Problems for the unit tests of moves, and what every move keeps to.
#ifndef PIPELOOM_TESTS_PLANNER_MOVES_MOVE_PROBLEM_H_
#define PIPELOOM_TESTS_PLANNER_MOVES_MOVE_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/retime.h"
#include "planner/moves/move.h"
#include "planner/moves/search_state.h"
#include "planner/search/order_portfolio.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {

// The uniform pipeline whose microbatches take `factor` times as long, each its
// own; with a memory limit that none of them comes near alone.
inline StageGraph ScaledPipeline(const std::vector<int64_t>& factor) {
  testing::UniformOptions options;
  options.ranks = 3;
  options.chunks = 2;
  options.microbatches = static_cast<int32_t>(factor.size());
  const StageGraph uniform = testing::UniformGraph(options);
  IdVector<TaskId, Task> tasks = uniform.tasks();
  for (Task& task : tasks) {
    task.duration = task.duration * factor[task.microbatch.value()];
  }
  IdVector<RankId, RankSpec> ranks = uniform.ranks();
  for (RankSpec& rank : ranks) {
    rank.memory.limit = Bytes(options.activation.count() * 9);
  }
  auto graph =
      StageGraph::Create("scaled", std::move(ranks), uniform.module_names(),
                         std::move(tasks), uniform.edges());
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

// Seven microbatches with random factors from 3 to 6, so that none of them has
// twice the mean work.
inline StageGraph UnequalPipeline(uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> factor;
  for (int m = 0; m < 7; ++m) factor.push_back(random.Between(3, 6));
  return ScaledPipeline(factor);
}

// Seven microbatches of which one has several times the work of the others.
inline StageGraph DominatedPipeline(uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> factor;
  for (int m = 0; m < 7; ++m) factor.push_back(random.Between(1, 2));
  factor[random.Below(7)] = 12;
  return ScaledPipeline(factor);
}

// A pipeline of 1,080 tasks; tests set SearchSpace::is_limited. One microbatch
// has many times the work of each other one if `dominant`.
inline StageGraph LargePipeline(bool dominant) {
  Random random(1);
  std::vector<int64_t> factor;
  for (int m = 0; m < 90; ++m) factor.push_back(random.Between(3, 6));
  if (dominant) factor[7] = 100;
  return ScaledPipeline(factor);
}

// A problem with the state of one worker that has a first answer.
struct MoveProblem {
  explicit MoveProblem(StageGraph stages, uint64_t seed = 1, int32_t worker = 0)
      : graph(std::move(stages)),
        flat(graph),
        ideal(Idealised(graph)),
        units(graph),
        portfolio(OrderPortfolio(flat, units)),
        spread(SpreadChoices(units)),
        space{.graph = &flat,
              .ideal = &ideal,
              .units = &units,
              .portfolio = &portfolio,
              .spread = &spread,
              .is_limited = MemoryIsShort(flat),
              .num_workers = 2},
        state(std::make_unique<SearchState>(space, worker, seed)) {
    ListScheduler lists(flat);
    PIPELOOM_CHECK(lists.CanRun());
    first = lists.Run({});
    PIPELOOM_CHECK(state->Adopt(first, lists.sequence()));
  }

  // Gives a move a round of at most `limit` evaluations.
  void Run(Move* move, int64_t limit) {
    state->BeginRound(limit);
    move->Run({});
  }

  StageGraph graph;
  FlatGraph flat;
  FlatGraph ideal;
  OrderUnits units;
  std::vector<OrderChoice> portfolio;
  std::vector<OrderChoice> spread;
  SearchSpace space;
  std::unique_ptr<SearchState> state;
  int64_t first = 0;  // Step time of the first answer, ns.
};

// Checks that the best answer is a legal schedule that takes its time.
inline void ExpectLegalBest(const MoveProblem& problem) {
  Retimer retimer(problem.flat);
  EXPECT_EQ(retimer.Retime(problem.state->overall().sequence),
            problem.state->overall().time);
  ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      TimeSchedule(problem.graph,
                   OrdersOf(problem.flat, problem.state->overall().sequence)));
  EXPECT_THAT(ValidateSchedule(problem.graph, schedule), testing::IsOk());
  EXPECT_EQ(schedule.step_time().count(), problem.state->overall().time);
}

// Gives a move of class M rounds on problems whose microbatches differ, and
// checks after each that the best answer is legal, not worse than before, made
// with no more evaluations than allowed, and the same again. Returns on how
// many of the problems it gained. `prepare` makes what M needs from others.
template <typename M, typename Prepare>
int CheckRoundsOf(int problems, const Prepare& prepare) {
  int gained = 0;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(problems); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem problem(UnequalPipeline(seed), seed);
    MoveProblem again(UnequalPipeline(seed), seed);
    prepare(&problem);
    prepare(&again);
    M move(*problem.state);
    M same(*again.state);
    const int64_t begun = problem.state->overall().time;
    for (const int64_t limit : {1, 7, 100, 400, 400}) {
      const int64_t before = problem.state->overall().time;
      const int64_t evaluations = problem.state->evaluations();
      problem.Run(&move, limit);
      again.Run(&same, limit);
      EXPECT_LE(problem.state->overall().time, before);
      EXPECT_LE(problem.state->evaluations(), evaluations + limit);
      EXPECT_GT(problem.state->evaluations(), evaluations);
      ExpectLegalBest(problem);
      EXPECT_EQ(problem.state->overall().sequence,
                again.state->overall().sequence);
    }
    gained += problem.state->overall().time < begun ? 1 : 0;
  }
  return gained;
}
template <typename M>
int CheckRoundsOf(int problems) {
  return CheckRoundsOf<M>(problems, [](MoveProblem*) {});
}

// Gives a move of class M rounds on problems that the oracle solves, and checks
// that it never beats the optimum. Returns how many of them it solves.
template <typename M, typename Prepare>
int CheckAgainstOptimum(int problems, const Prepare& prepare) {
  int solved = 0;
  int done = 0;
  for (uint64_t seed = 0; done < problems; ++seed) {
    auto graph = testing::SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++done;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::optional<Duration> optimum = testing::BruteForceStepTime(*graph);
    PIPELOOM_CHECK(optimum.has_value());
    MoveProblem problem(*std::move(graph), seed);
    prepare(&problem);
    M move(*problem.state);
    for (int round = 0; round < 3; ++round) problem.Run(&move, 200);
    EXPECT_GE(problem.state->overall().time, optimum->count());
    ExpectLegalBest(problem);
    solved += problem.state->overall().time == optimum->count() ? 1 : 0;
  }
  return solved;
}
template <typename M>
int CheckAgainstOptimum(int problems) {
  return CheckAgainstOptimum<M>(problems, [](MoveProblem*) {});
}

// Checks that a move of class M begins at a new start as if it had made no turn
// before.
template <typename M>
void CheckForgetsAtRestart() {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem fresh(UnequalPipeline(seed), seed);
    const std::vector<int32_t> start = fresh.state->since_start().sequence;
    MoveProblem used(UnequalPipeline(seed), seed);
    M move(*used.state);
    used.Run(&move, 400);
    used.state->LeaveBest();
    move.OnRestart();
    used.state->Keep(used.first, start);
    used.state->random() = Random(5);
    used.Run(&move, 1);
    M other(*fresh.state);
    fresh.state->random() = Random(5);
    fresh.Run(&other, 1);
    EXPECT_EQ(used.state->since_start().time, fresh.state->since_start().time);
    EXPECT_EQ(used.state->since_start().sequence,
              fresh.state->since_start().sequence);
    EXPECT_EQ(used.state->random().Next(), fresh.state->random().Next());
  }
}

}  // namespace pipeloom::planner

#endif  // PIPELOOM_TESTS_PLANNER_MOVES_MOVE_PROBLEM_H_
