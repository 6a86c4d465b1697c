#include "planner/moves/relabel_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/retime.h"
#include "planner/moves/order_search.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::UniformGraph;
using ::pipeloom::testing::UniformOptions;

// The uniform pipeline with a random factor of time, and with `unequal` one of
// memory, by microbatch.
StageGraph VariedPipeline(uint64_t seed, bool unequal) {
  Random random(seed);
  UniformOptions options;
  options.ranks = 3;
  options.microbatches = 7;
  options.chunks = 2;
  const StageGraph uniform = UniformGraph(options);
  std::vector<int64_t> slower;
  std::vector<int64_t> larger;
  for (int m = 0; m < options.microbatches; ++m) {
    slower.push_back(random.Between(1, 5));
    larger.push_back(unequal ? random.Between(1, 3) : 1);
  }
  IdVector<TaskId, Task> tasks = uniform.tasks();
  for (Task& task : tasks) {
    const auto m = static_cast<size_t>(task.microbatch.value());
    task.duration = task.duration * slower[m];
    task.alloc = Bytes(task.alloc.count() * larger[m]);
    task.free = Bytes(task.free.count() * larger[m]);
  }
  IdVector<RankId, RankSpec> ranks = uniform.ranks();
  for (RankSpec& rank : ranks) {
    rank.memory.limit = Bytes(options.activation.count() * 9);
  }
  auto graph =
      StageGraph::Create("varied", std::move(ranks), uniform.module_names(),
                         std::move(tasks), uniform.edges());
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

TEST(RelabelSearchTest, StaysLegalNeverWorsensAndReportsTrueTimes) {
  int better = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = VariedPipeline(seed, seed % 2 == 0);
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    ListScheduler scheduler(flat);
    ASSERT_TRUE(scheduler.CanRun());
    const int64_t before = scheduler.Run({});
    RelabelSearch search(flat, units);
    ASSERT_TRUE(search.can_move());
    search.Start(scheduler.sequence());
    EXPECT_EQ(search.best_time(), before);
    Random random(seed);
    Retimer retimer(flat);
    const auto check = [&](absl::Span<const int32_t> sequence, int64_t time) {
      EXPECT_EQ(retimer.Retime(sequence), time);
      ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                           TimeSchedule(graph, OrdersOf(flat, sequence)));
      EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
      EXPECT_EQ(schedule.step_time(), Nanoseconds(time));
    };
    EXPECT_LE(search.Run(200, 1e4, /*target=*/0, random), 200);
    EXPECT_LE(search.best_time(), before);
    better += search.best_time() < before ? 1 : 0;
    check(search.best_sequence(), search.best_time());
    for (int i = 0; i < 10; ++i) {
      const int64_t time = search.Kick(random);
      check(search.sequence(), time);
    }
  }
  EXPECT_GT(better, 30);
}

TEST(RelabelSearchTest, FindsTheBestOfAllOrdersOfFourMicrobatches) {
  // With one rank pattern kept, 24 orders: annealing meets the best.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    UniformOptions options;
    options.ranks = 4;
    options.microbatches = 4;
    const StageGraph uniform = UniformGraph(options);
    IdVector<TaskId, Task> tasks = uniform.tasks();
    std::vector<int64_t> slower;
    for (int m = 0; m < 4; ++m) slower.push_back(random.Between(1, 9));
    for (Task& task : tasks) {
      task.duration = task.duration * slower[task.microbatch.value()];
    }
    ASSERT_OK_AND_ASSIGN(
        const StageGraph graph,
        StageGraph::Create("four", uniform.ranks(), uniform.module_names(),
                           std::move(tasks), uniform.edges()));
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    ListScheduler scheduler(flat);
    scheduler.Run({});
    const auto start = scheduler.sequence();
    RelabelSearch search(flat, units);
    search.Start(start);
    search.Run(2000, 1e4, /*target=*/0, random);
    // Apply the relabeling by separate code: each task of a microbatch becomes
    // the other microbatch's task at the same index.
    std::vector<std::vector<int32_t>> of(4);
    std::vector<std::pair<int32_t, size_t>> steps(start.size());
    std::vector<size_t> index(start.size());
    for (int32_t t = 0; t < flat.num_tasks; ++t) {
      const int32_t m = graph.task(TaskId(t)).microbatch.value();
      index[t] = of[m].size();
      of[m].push_back(t);
    }
    std::vector<int32_t> order = {0, 1, 2, 3};
    Retimer retimer(flat);
    int64_t best = kNoLimit;
    do {
      std::vector<int32_t> sequence;
      for (const int32_t t : start) {
        const int32_t m = graph.task(TaskId(t)).microbatch.value();
        sequence.push_back(of[order[m]][index[t]]);
      }
      best = std::min(best, retimer.Retime(sequence));
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(search.best_time(), best);
  }
}

TEST(RelabelSearchTest, NothingToMoveWhereMicrobatchesAreAlike) {
  const StageGraph uniform = UniformGraph({});
  EXPECT_FALSE(
      RelabelSearch(FlatGraph(uniform), OrderUnits(uniform)).can_move());
}

TEST(RelabelSearchTest, MicrobatchesOfOtherStructureKeepTheirPlaces) {
  RandomGraphOptions options;
  options.max_microbatches = 6;
  options.with_memory_limits = true;
  int moved = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    ListScheduler scheduler(flat);
    ASSERT_TRUE(scheduler.CanRun());
    scheduler.Run({});
    RelabelSearch search(flat, units);
    if (!search.can_move()) continue;
    ++moved;
    search.Start(scheduler.sequence());
    Random random(seed);
    for (int i = 0; i < 20; ++i) {
      search.Kick(random);
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          TimeSchedule(graph, OrdersOf(flat, search.sequence())));
      EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
    }
  }
  EXPECT_GT(moved, 5);
}

}  // namespace
}  // namespace pipeloom::planner
