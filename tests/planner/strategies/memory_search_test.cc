#include "planner/strategies/memory_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "planner/bounds/plan_bound.h"
#include "planner/memory/smallest_limit.h"
#include "planner/memory/stage_choices.h"
#include "planner/search/search_graph.h"
#include "tests/planner/small_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::StepMemory;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::WithRoom;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Problem = testing::SmallStep;

Problem MakeProblem(uint64_t seed, int32_t microbatches = 6) {
  return testing::MakeSmallStep(seed, microbatches, true);
}

// Returns the bytes of all activations of the rank that has most.
int64_t AllHeld(const StageGraph& graph) {
  IdVector<RankId, int64_t> held(graph.num_ranks(), 0);
  for (const Task& task : graph.tasks()) held[task.rank] += task.alloc.count();
  return *std::max_element(held.begin(), held.end());
}

SearchBudget Evaluations(int64_t count, int32_t threads = 1) {
  SearchBudget budget;
  budget.max_evaluations = count;
  budget.threads = threads;
  return budget;
}

TEST(SearchWithMemoryTest, KeepsTheLimitsAndBeatsOneLevelForAll) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Problem problem = MakeProblem(seed);
    for (const double share : {0.15, 0.3, 0.6}) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << " share " << share);
      const StageGraph graph =
          WithRoom(problem.graph,
                   static_cast<int64_t>(
                       share * static_cast<double>(AllHeld(problem.graph))));
      const auto found = SearchWithMemory(
          graph, problem.memory, problem.partition, seed, Evaluations(600));
      if (absl::IsResourceExhausted(found.status())) continue;
      ASSERT_THAT(found, IsOk());
      ASSERT_OK_AND_ASSIGN(
          const StageGraph chosen,
          partition::ApplyMemory(graph, problem.memory, found->selection));
      EXPECT_THAT(ValidateSchedule(chosen, found->found.schedule), IsOk());
      EXPECT_LE(found->found.lower_bound, found->found.schedule.step_time());
      // Recomputing everything, with as much search.
      ASSERT_OK_AND_ASSIGN(const StageGraph min_memory,
                           partition::ApplyMemory(graph, problem.memory,
                                                  problem.memory.MinMemory()));
      ASSERT_OK_AND_ASSIGN(const SearchResult other,
                           SearchGraph(min_memory, seed, Evaluations(600)));
      EXPECT_LE(found->found.schedule.step_time(), other.schedule.step_time());
    }
  }
}

TEST(SearchWithMemoryTest, IsNotBelowTheBoundFromTimeAndMemoryAtOnce) {
  int by_area = 0;
  for (const double share : {0.11, 0.12, 0.13, 0.2}) {
    const Problem problem = MakeProblem(1, 32);
    const StageGraph graph =
        WithRoom(problem.graph,
                 static_cast<int64_t>(
                     share * static_cast<double>(AllHeld(problem.graph))));
    const auto found = SearchWithMemory(graph, problem.memory,
                                        problem.partition, 1, Evaluations(300));
    if (absl::IsResourceExhausted(found.status())) continue;
    ASSERT_THAT(found, IsOk());
    const NamedBound bound = PlanBound(graph, &problem.memory);
    EXPECT_LE(bound.time, found->found.schedule.step_time().count());
    if (std::string(bound.source) == "area") ++by_area;
  }
  EXPECT_GE(by_area, 2);
}

TEST(SearchWithMemoryTest, KeepsEverythingWhereThereIsRoom) {
  const Problem problem = MakeProblem(1);
  ASSERT_OK_AND_ASSIGN(
      const MemorySchedule found,
      SearchWithMemory(WithRoom(problem.graph, 2 * AllHeld(problem.graph)),
                       problem.memory, problem.partition, 1, Evaluations(200)));
  EXPECT_EQ(found.selection, problem.memory.KeepEverything());
}

TEST(SearchWithMemoryTest, IsTheSameForAnyNumberOfThreads) {
  const Problem problem = MakeProblem(2);
  const StageGraph graph = WithRoom(problem.graph, AllHeld(problem.graph) / 3);
  ASSERT_OK_AND_ASSIGN(
      const MemorySchedule one,
      SearchWithMemory(graph, problem.memory, problem.partition, 3,
                       Evaluations(400, 1)));
  for (const int32_t threads : {2, 4}) {
    ASSERT_OK_AND_ASSIGN(
        const MemorySchedule other,
        SearchWithMemory(graph, problem.memory, problem.partition, 3,
                         Evaluations(400, threads)));
    EXPECT_EQ(one.selection, other.selection);
    EXPECT_EQ(one.found.schedule, other.found.schedule);
  }
}

TEST(SearchWithMemoryTest, GoesOnFromAnAnswerUnderTighterLimits) {
  const Problem problem = MakeProblem(3);
  const int64_t room = AllHeld(problem.graph) / 2;
  ASSERT_OK_AND_ASSIGN(
      const MemorySchedule first,
      SearchWithMemory(WithRoom(problem.graph, room), problem.memory,
                       problem.partition, 1, Evaluations(300)));
  const StageGraph tighter = WithRoom(problem.graph, room * 9 / 10);
  ASSERT_OK_AND_ASSIGN(
      const MemorySchedule second,
      SearchWithMemory(tighter, problem.memory, problem.partition, 1,
                       Evaluations(30), &first));
  ASSERT_OK_AND_ASSIGN(
      const StageGraph chosen,
      partition::ApplyMemory(tighter, problem.memory, second.selection));
  EXPECT_THAT(ValidateSchedule(chosen, second.found.schedule), IsOk());
}

TEST(SearchWithMemoryTest, SaysWhatLacksWhenNothingFits) {
  const Problem problem = MakeProblem(1);
  EXPECT_THAT(SearchWithMemory(WithRoom(problem.graph, 1), problem.memory,
                               problem.partition, 1, Evaluations(50))
                  .status(),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        HasSubstr("over the limit")));
}

MemorySelection RandomSelection(const StepMemory& memory, Random& random) {
  MemorySelection selection = memory.KeepEverything();
  for (const StagePairId pair : memory.pairs.ids()) {
    selection[pair] = static_cast<int32_t>(
        random.Below(static_cast<int64_t>(memory.candidates(pair).size())));
  }
  return selection;
}

TEST(LeastMemoryTest, NoSelectionNeedsLessMemoryOrTime) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Problem problem = MakeProblem(seed);
    const int64_t least =
        SmallestLimitOfStep(problem.graph, problem.memory).at_least;
    Random random(seed);
    int64_t smallest = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 12; ++i) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " try " << i);
      const MemorySelection selection =
          i == 0 ? problem.memory.MinMemory()
                 : RandomSelection(problem.memory, random);
      ASSERT_OK_AND_ASSIGN(
          const StageGraph chosen,
          partition::ApplyMemory(problem.graph, problem.memory, selection));
      const SmallestLimit limit = FindSmallestLimit(chosen);
      EXPECT_TRUE(limit.proven());
      EXPECT_LE(least, limit.at_least);
      smallest = std::min(smallest, limit.enough);
      // With little more than that, the selection's schedules are above the
      // bound of all.
      IdVector<RankId, RankSpec> ranks = chosen.ranks();
      for (RankSpec& rank : ranks) {
        rank.memory.limit = Bytes(limit.enough + limit.enough / 50);
      }
      ASSERT_OK_AND_ASSIGN(
          const SearchResult found,
          SearchGraph(chosen.WithRanks(ranks), seed, Evaluations(200)));
      for (const RankId r : ranks.ids()) {
        ranks[r].memory.overhead = problem.graph.rank(r).memory.overhead;
      }
      EXPECT_LE(PlanBound(problem.graph.WithRanks(ranks), &problem.memory).time,
                found.schedule.step_time().count());
    }
    // The ends meet, or nearly.
    EXPECT_LE(static_cast<double>(smallest), 1.05 * static_cast<double>(least));
  }
}

TEST(SmallestLimitTest, OfAStepSaysProvenOnlyBelowWhatIsProven) {
  const Problem problem = MakeProblem(1);
  const SmallestLimit limit =
      SmallestLimitOfStep(problem.graph, problem.memory);
  ASSERT_GT(limit.at_least, 0);
  ASSERT_GE(limit.enough, limit.at_least);
  const auto message = [&](int64_t given, std::optional<Bytes> works) {
    const absl::Status described =
        DescribeInfeasibleStep(absl::ResourceExhaustedError("too much"),
                               limit.at_least, Bytes(given), works);
    EXPECT_EQ(described.code(), absl::StatusCode::kResourceExhausted);
    return std::string(described.message());
  };
  const std::string least =
      FormatBytes(RoundDownAsFormatted(Bytes(limit.at_least)));
  EXPECT_EQ(message(limit.at_least - 1, std::nullopt),
            absl::StrCat("too much; whatever is kept or recomputed and in any "
                         "order, no limit below ",
                         least, " works (proven)"));
  EXPECT_EQ(message(limit.at_least, Bytes(7)),
            absl::StrCat("too much; only limits below ", least,
                         " are proven too small, this one is not; on this "
                         "partition a plan was found for a limit of 7 B"));
  EXPECT_EQ(DescribeInfeasibleStep(absl::ResourceExhaustedError("too much"),
                                   std::nullopt, Bytes(1), std::nullopt)
                .message(),
            "too much");
}

}  // namespace
}  // namespace pipeloom::planner
