#include "planner/strategies/starts/segment_starts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stop_token>
#include <utility>
#include <vector>

#include "planner/bounds/lower_bound.h"
#include "planner/bounds/plan_bound.h"
#include "planner/memory/memory_levels.h"
#include "planner/strategies/dip/dip_strategy.h"
#include "tests/planner/small_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;

constexpr double kShares[] = {0.4, 0.6, 1, 0};

using Problem = ::pipeloom::testing::SmallStep;

// A step of fused backwards, with such a share of the memory that keeping
// everything would take.
Problem MakeProblem(uint64_t seed, double share, int32_t microbatches = 6) {
  Problem problem =
      ::pipeloom::testing::MakeSmallStep(seed, microbatches, false);
  IdVector<RankId, RankSpec> ranks = problem.graph.ranks();
  IdVector<RankId, int64_t> held(problem.graph.num_ranks(), 0);
  for (const Task& task : problem.graph.tasks()) {
    held[task.rank] += task.alloc.count();
  }
  for (const RankId r : ranks.ids()) {
    ranks[r].memory.limit =
        ranks[r].memory.static_bytes() +
        Bytes(static_cast<int64_t>(share * static_cast<double>(held[r])));
  }
  problem.graph = problem.graph.WithRanks(ranks);
  return problem;
}

SearchBudget Evaluations(int64_t number, int32_t threads = 1) {
  SearchBudget budget;
  budget.max_evaluations = number;
  budget.threads = threads;
  return budget;
}

absl::StatusOr<SegmentStarts> Find(const Problem& problem,
                                   const SearchBudget& budget,
                                   absl::Span<const double> times = {}) {
  return FindSegmentStarts(
      problem.graph, problem.memory,
      MemoryLevels(problem.memory, problem.partition, kShares), times, 1,
      budget);
}

int64_t BestTime(const SegmentStarts& found) {
  int64_t best = kNoLimit;
  for (const SegmentStart& start : found.starts) {
    best = std::min(best, start.time);
  }
  return best;
}

TEST(SegmentStartsTest, StartsAreLegalAndAsFastAsTheySay) {
  int found_any = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const double share : {0.2, 0.4, 1.0}) {
      const Problem problem = MakeProblem(seed, share);
      ASSERT_OK_AND_ASSIGN(const SegmentStarts found,
                           Find(problem, Evaluations(200)));
      const int64_t bound =
          LowerBoundWithoutMemory(LeastMemory(problem.graph, problem.memory))
              .time;
      for (const SegmentStart& start : found.starts) {
        ASSERT_OK_AND_ASSIGN(
            const StageGraph chosen,
            partition::ApplyMemory(problem.graph, problem.memory,
                                   start.selection));
        ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                             TimeSchedule(chosen, start.orders));
        EXPECT_THAT(ValidateSchedule(chosen, schedule), IsOk());
        EXPECT_EQ(schedule.step_time().count(), start.time);
        EXPECT_GE(start.time, bound);
        ++found_any;
      }
    }
  }
  EXPECT_GE(found_any, 60);
}

TEST(SegmentStartsTest, EvaluationsDecideAndThreadsDoNot) {
  const Problem problem = MakeProblem(3, 0.4, 8);
  int64_t before = kNoLimit;
  for (const int64_t evaluations : {8, 100, 1000}) {
    ASSERT_OK_AND_ASSIGN(const SegmentStarts one,
                         Find(problem, Evaluations(evaluations)));
    for (const int32_t threads : {2, 4}) {
      ASSERT_OK_AND_ASSIGN(const SegmentStarts more,
                           Find(problem, Evaluations(evaluations, threads)));
      ASSERT_EQ(more.starts.size(), one.starts.size());
      EXPECT_EQ(more.evaluations, one.evaluations);
      for (size_t i = 0; i < one.starts.size(); ++i) {
        EXPECT_EQ(more.starts[i].time, one.starts[i].time);
        EXPECT_EQ(more.starts[i].orders, one.starts[i].orders);
        EXPECT_EQ(more.starts[i].selection, one.starts[i].selection);
      }
    }
    EXPECT_LE(BestTime(one), before);
    before = BestTime(one);
  }
  ASSERT_LT(before, kNoLimit);
}

// DIP's own search looks at orders of the same segments with a memory choice
// for each promising one, which costs as much as some ten list schedules.
TEST(SegmentStartsTest, IsOnAverageFasterThanDipAtLessThanItsCost) {
  double ours = 0;
  double dip = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Problem problem = MakeProblem(seed, 0.3, 8);
    const auto strategy = MakeDip();
    const absl::StatusOr<MemorySchedule> made = strategy->MakeMemorySchedule(
        problem.graph, problem.memory, problem.partition, 1, Evaluations(60));
    ASSERT_OK_AND_ASSIGN(const SegmentStarts found,
                         Find(problem, Evaluations(300)));
    if (!made.ok() || found.starts.empty()) continue;
    dip += ToSeconds(made->found.schedule.step_time());
    ours += static_cast<double>(BestTime(found)) * 1e-9;
  }
  ASSERT_GT(dip, 0);
  EXPECT_LT(ours, dip);
}

TEST(SegmentStartsTest, TimesOfASimilarStepGiveOneOfTheOrders) {
  const Problem problem = MakeProblem(5, 1.0, 8);
  ASSERT_OK_AND_ASSIGN(const SegmentStarts best,
                       Find(problem, Evaluations(2000)));
  const auto start = std::min_element(
      best.starts.begin(), best.starts.end(),
      [](const auto& a, const auto& b) { return a.time < b.time; });
  ASSERT_NE(start, best.starts.end());
  ASSERT_OK_AND_ASSIGN(
      const StageGraph chosen,
      partition::ApplyMemory(problem.graph, problem.memory, start->selection));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       TimeSchedule(chosen, start->orders));
  std::vector<double> times;
  for (const TaskId t : chosen.task_ids()) {
    times.push_back(ToSeconds(schedule.start[t] - kStepStart));
  }
  ASSERT_OK_AND_ASSIGN(const SegmentStarts without,
                       Find(problem, Evaluations(8)));
  ASSERT_OK_AND_ASSIGN(const SegmentStarts with,
                       Find(problem, Evaluations(8), times));
  EXPECT_LE(BestTime(with), BestTime(without));
  // A list schedule in the order of segments is not quite the schedule itself.
  EXPECT_LE(static_cast<double>(BestTime(with)),
            1.05 * static_cast<double>(start->time));
}

TEST(SegmentStartsTest, NothingFitsOrNothingIsWanted) {
  const Problem tight = MakeProblem(1, 0.001);
  ASSERT_OK_AND_ASSIGN(const SegmentStarts none, Find(tight, Evaluations(100)));
  EXPECT_TRUE(none.starts.empty());
  std::stop_source source;
  source.request_stop();
  SearchBudget abandoned = Evaluations(100);
  abandoned.stop = source.get_token();
  abandoned.needs_answer = false;
  EXPECT_TRUE(absl::IsCancelled(Find(MakeProblem(1, 1.0), abandoned).status()));
}

// Where many microbatches follow one another under a limit, orders by the time
// that tasks should run are often shorter than orders of segments.
TEST(SegmentStartsTest, SomeAreMadeByFirstChoices) {
  int by_choice = 0;
  int by_segments = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const double share : {0.15, 0.2, 0.3, 0.5}) {
      const Problem problem = MakeProblem(seed, share, 12);
      ASSERT_OK_AND_ASSIGN(const SegmentStarts found,
                           Find(problem, Evaluations(70)));
      for (const SegmentStart& start : found.starts) {
        EXPECT_TRUE(start.has_level());
        EXPECT_NE(start.first_choice.has_value(), !start.units.empty());
        (start.first_choice.has_value() ? by_choice : by_segments) += 1;
      }
    }
  }
  EXPECT_GT(by_choice, 10) << by_segments;
  EXPECT_GT(by_segments, 10);
}

// With few evaluations a second level matters more than they do.
TEST(SegmentStartsTest, FewEvaluationsGoToOrdersOfSegments) {
  const Problem problem = MakeProblem(3, 0.4, 8);
  ASSERT_OK_AND_ASSIGN(const SegmentStarts found,
                       Find(problem, Evaluations(8)));
  ASSERT_FALSE(found.starts.empty());
  for (const SegmentStart& start : found.starts) {
    EXPECT_FALSE(start.first_choice.has_value());
  }
}

// Limits under which a start's own orders need not fit any more.
TEST(SegmentStartsTest, OrdersAreMadeAnewWithinLowerLimits) {
  int made = 0;
  int did_not_fit = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Problem problem = MakeProblem(seed, 0.5);
    ASSERT_OK_AND_ASSIGN(const SegmentStarts found,
                         Find(problem, Evaluations(100)));
    const StageGraph lower = MakeProblem(seed, 0.35).graph;
    for (const SegmentStart& start : found.starts) {
      // Under the limits that it was made for, they are the same.
      ASSERT_OK_AND_ASSIGN(const RankOrders same,
                           OrdersWithin(problem.graph, problem.memory, start));
      EXPECT_EQ(same, start.orders);
      ASSERT_OK_AND_ASSIGN(const RankOrders orders,
                           OrdersWithin(lower, problem.memory, start));
      if (orders.empty()) continue;
      ++made;
      ASSERT_OK_AND_ASSIGN(
          const StageGraph chosen,
          partition::ApplyMemory(lower, problem.memory, start.level));
      ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                           TimeSchedule(chosen, orders));
      EXPECT_THAT(ValidateSchedule(chosen, schedule), IsOk());
      const absl::StatusOr<Schedule> before =
          TimeSchedule(chosen, start.orders);
      did_not_fit += ValidateSchedule(chosen, *before).ok() ? 0 : 1;
    }
  }
  EXPECT_GT(made, 20);
  EXPECT_GT(did_not_fit, 5);
}

}  // namespace
}  // namespace pipeloom::planner
