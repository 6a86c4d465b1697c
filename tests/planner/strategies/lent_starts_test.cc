#include "planner/strategies/starts/lent_starts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/random.h"
#include "ir/plan/schedule.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/strategies/memory_search.h"
#include "tests/planner/small_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::SmallStep;

// Returns a step with half the memory that it would need to keep everything in
// the order in which nothing goes back before all has gone forward.
SmallStep TightStep(uint64_t seed) {
  SmallStep step =
      testing::MakeSmallStep(seed, /*microbatches=*/6, /*split_backward=*/true);
  IdVector<RankId, RankSpec> ranks = step.graph.ranks();
  IdVector<RankId, Bytes> taken(ranks.size());
  for (const Task& task : step.graph.tasks()) {
    if (task.pass == Pass::kForward) taken[task.rank] += task.alloc;
  }
  for (const RankId r : ranks.ids()) {
    ranks[r].memory.limit =
        ranks[r].memory.static_bytes() + Bytes(taken[r].count() / 2);
  }
  step.graph = step.graph.WithRanks(ranks);
  return step;
}

// Returns a schedule as what a step with it would lend.
LentStep LentBy(const MemorySchedule& made) {
  LentStep lent{.selection = made.selection};
  for (const auto start : made.found.schedule.start) {
    lent.times.push_back(ToSeconds(start - kStepStart));
  }
  return lent;
}

// Returns the search's schedule of a step within its limits.
MemorySchedule Searched(const SmallStep& step) {
  SearchBudget budget;
  budget.max_evaluations = 400;
  return *SearchWithMemory(step.graph, step.memory, step.partition, 1, budget);
}

// Returns the schedule of a start; fails the test if it is not legal.
Duration TimeOf(const SmallStep& step, const std::vector<LentStep>& lent,
                const LentStart& start) {
  const auto chosen = partition::ApplyMemory(step.graph, step.memory,
                                             lent[start.step].selection);
  EXPECT_THAT(chosen.status(), IsOk());
  const auto schedule = TimeSchedule(*chosen, start.orders);
  EXPECT_THAT(schedule.status(), IsOk());
  EXPECT_THAT(ValidateSchedule(*chosen, *schedule), IsOk());
  return schedule->step_time();
}

TEST(LentStartsTest, AStepLendsItselfItsPlan) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const SmallStep step = TightStep(seed);
    ASSERT_TRUE(MemoryIsShort(FlatGraph(step.graph)));
    const MemorySchedule searched = Searched(step);
    const std::vector<LentStep> lent = {LentBy(searched)};
    ASSERT_OK_AND_ASSIGN(const LentStarts made,
                         MakeLentStarts(step.graph, step.memory, lent, 1));
    ASSERT_EQ(made.starts.size(), 1);
    EXPECT_EQ(made.evaluations, 4);
    const Duration time = TimeOf(step, lent, made.starts[0]);
    EXPECT_EQ(time.count(), made.starts[0].time);
    EXPECT_LE(ToSeconds(time),
              1.05 * ToSeconds(searched.found.schedule.step_time()));
  }
}

TEST(LentStartsTest, TheBestOfManyIsTakenForAnyNumberOfThreads) {
  const SmallStep step = TightStep(3);
  const MemorySchedule searched = Searched(step);
  std::vector<LentStep> lent;
  // Times that say less and less of the plan.
  Random random(7);
  for (const double noise : {0.5, 0.2, 0.0, 1.0}) {
    LentStep other = LentBy(searched);
    const double whole = ToSeconds(searched.found.schedule.step_time());
    for (double& time : other.times) time += noise * whole * random.Unit();
    lent.push_back(std::move(other));
  }
  ASSERT_OK_AND_ASSIGN(const LentStarts alone,
                       MakeLentStarts(step.graph, step.memory, lent, 1));
  ASSERT_EQ(alone.starts.size(), 2);
  EXPECT_LE(alone.starts[0].time, alone.starts[1].time);
  ASSERT_OK_AND_ASSIGN(const LentStarts exact,
                       MakeLentStarts(step.graph, step.memory,
                                      absl::MakeSpan(lent).subspan(2, 1), 1));
  EXPECT_LE(alone.starts[0].time, exact.starts[0].time);
  for (const LentStart& start : alone.starts) TimeOf(step, lent, start);
  ASSERT_OK_AND_ASSIGN(const LentStarts more,
                       MakeLentStarts(step.graph, step.memory, lent, 3));
  ASSERT_EQ(more.starts.size(), alone.starts.size());
  for (size_t i = 0; i < more.starts.size(); ++i) {
    EXPECT_EQ(more.starts[i].orders, alone.starts[i].orders);
    EXPECT_EQ(more.starts[i].time, alone.starts[i].time);
  }
}

TEST(LentStartsTest, LowerLimitsAreKeptOrTheStartIsLeftOut) {
  const SmallStep step = TightStep(1);
  const std::vector<LentStep> lent = {LentBy(Searched(step))};
  ASSERT_OK_AND_ASSIGN(const LentStarts made,
                       MakeLentStarts(step.graph, step.memory, lent, 1));
  ASSERT_EQ(made.starts.size(), 1);
  int fits = 0;
  int left_out = 0;
  for (const int64_t percent : {99, 95, 90, 80, 50, 5}) {
    SCOPED_TRACE(percent);
    IdVector<RankId, RankSpec> ranks = step.graph.ranks();
    for (const RankId r : ranks.ids()) {
      RankMemory& memory = ranks[r].memory;
      const Bytes room = memory.limit - memory.static_bytes();
      memory.limit =
          memory.static_bytes() + Bytes(room.count() * percent / 100);
    }
    SmallStep lower = step;
    lower.graph = step.graph.WithRanks(ranks);
    ASSERT_OK_AND_ASSIGN(
        const LentStart again,
        LentStartWithin(lower.graph, lower.memory, lent, made.starts[0]));
    if (again.time >= kNoLimit) {
      ++left_out;
      EXPECT_TRUE(again.orders.empty());
      continue;
    }
    ++fits;
    TimeOf(lower, lent, again);
  }
  EXPECT_GT(fits, 0);
  EXPECT_GT(left_out, 0);
}

TEST(LentStartsTest, WithoutLentStepsThereAreNone) {
  const SmallStep step = TightStep(1);
  ASSERT_OK_AND_ASSIGN(const LentStarts made,
                       MakeLentStarts(step.graph, step.memory, {}, 2));
  EXPECT_TRUE(made.starts.empty());
  EXPECT_EQ(made.evaluations, 0);
}

}  // namespace
}  // namespace pipeloom::planner
