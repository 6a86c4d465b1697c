// Tests of the benchmark of schedules: journal, time, ranking.
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/graph/problem_suite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/search/search_graph.h"
#include "studies/bench/bench_journal.h"
#include "studies/bench/bench_runs.h"
#include "studies/bench/entrants.h"
#include "studies/bench/random_problems.h"
#include "studies/job/planned_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

TEST(RandomProblemsTest, DependOnSetAndIndexAloneAndCanBeSolved) {
  const auto few = RandomProblems("test:3");
  const auto more = RandomProblems("test:40");
  const auto train = RandomProblems("train:40");
  ASSERT_THAT(few, testing::IsOk());
  ASSERT_THAT(more, testing::IsOk());
  ASSERT_THAT(train, testing::IsOk());
  int limited = 0;
  int split = 0;
  int unequal = 0;
  for (size_t i = 0; i < more->size(); ++i) {
    const formats::SuiteProblem& problem = (*more)[i];
    const auto graph =
        formats::MakePipelineGraph(problem.name, *problem.pipeline);
    ASSERT_THAT(graph, testing::IsOk());
    const auto other = formats::MakePipelineGraph(
        problem.name, *(i < 3 ? *few : *train)[i].pipeline);
    ASSERT_THAT(other, testing::IsOk());
    EXPECT_EQ(*graph == *other, i < 3) << problem.name;
    EXPECT_LE(graph->num_tasks(), 3000);
    limited += problem.pipeline->memory_limit > Bytes(0) ? 1 : 0;
    split += problem.pipeline->split_backward ? 1 : 0;
    unequal += problem.pipeline->modules[0].scale.empty() ? 0 : 1;
    EXPECT_THAT(planner::SearchGraph(*graph, 1, {.max_evaluations = 1}),
                testing::IsOk())
        << problem.name;
  }
  EXPECT_THAT(limited, ::testing::AllOf(::testing::Gt(20), ::testing::Lt(40)));
  EXPECT_THAT(split, ::testing::AllOf(::testing::Gt(12), ::testing::Lt(36)));
  EXPECT_THAT(unequal, ::testing::AllOf(::testing::Gt(12), ::testing::Lt(36)));
}

TEST(RandomProblemsTest, SetsMustBeNamedWithANumber) {
  for (const char* text : {"", "train", "train:", "train:0", "train:x",
                           "other:5", "test:-1", "test:10001"}) {
    const auto problems = RandomProblems(text);
    EXPECT_EQ(problems.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(problems.status().message()),
                ::testing::HasSubstr("train:N or test:N"));
  }
}

TEST(BenchJournalTest, ALineComesBackAndATornOneDoesNot) {
  const Fingerprint key{1, 0xfedcba9876543210u};
  for (const absl::Status& status :
       {absl::OkStatus(), absl::ResourceExhaustedError("no\troom\nleft")}) {
    const BenchRow row{.schedule = "dip",
                       .budget = Milliseconds(10),
                       .status = status,
                       .step_time = Microseconds(3),
                       .lower_bound = Microseconds(2),
                       .search_time = Microseconds(1.234),
                       .evaluations = 77};
    std::string line = BenchJournalLine(key, row);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    Fingerprint got_key;
    BenchRow got;
    ASSERT_TRUE(ParseBenchJournalLine(line, &got_key, &got));
    EXPECT_EQ(got_key, key);
    EXPECT_EQ(got.status, status);
    EXPECT_EQ(BenchJournalLine(got_key, got), line + "\n");
    for (size_t cut = 0; cut < line.size(); ++cut) {
      EXPECT_FALSE(ParseBenchJournalLine(line.substr(0, cut), &got_key, &got));
    }
  }
}

// Not the time that passes, which depends on the machine: what the deadlines of
// all searches add up to.
TEST(BenchTimeTest, TheShippedSuiteTakesUnderTenMinutesOfSearch) {
  std::ifstream file(PIPELOOM_SOURCE_DIR "/workloads/bench/suite.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_OK_AND_ASSIGN(const formats::ProblemSuite suite,
                       formats::ParseProblemSuite(text, "suite.json"));
  BenchOptions options;
  options.schedules = UsualSchedules();
  options.budgets = {Milliseconds(10), Milliseconds(100), Seconds(1),
                     Seconds(10)};
  options.most_of_others = Seconds(1);
  EXPECT_LE(MostSearchTime(suite.problems, options), Seconds(600));
}

// RLHFuse's twelve, without a limit and at the published memory peaks: its
// answers took 20 to 4,979 s on hundreds of cores.
TEST(FusedProblemsTest, AllPublishedOnesAreSolvedAndProven) {
  std::ifstream file(PIPELOOM_SOURCE_DIR "/workloads/bench/suite.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_OK_AND_ASSIGN(const formats::ProblemSuite suite,
                       formats::ParseProblemSuite(text, "suite.json"));
  int solved = 0;
  for (const formats::SuiteProblem& problem : suite.problems) {
    if (problem.peer_name != "RLHFuse") continue;
    ASSERT_OK_AND_ASSIGN(
        const StageGraph graph,
        formats::MakePipelineGraph(problem.name, *problem.pipeline));
    ASSERT_OK_AND_ASSIGN(
        const planner::SearchResult found,
        planner::SearchGraph(graph, /*seed=*/1,
                             {.max_evaluations = 200'000, .threads = 2}));
    EXPECT_TRUE(found.proven_optimal) << problem.name;
    EXPECT_EQ(found.schedule.step_time(), problem.best_known) << problem.name;
    EXPECT_LE(problem.best_known, problem.peer) << problem.name;
    ++solved;
  }
  EXPECT_EQ(solved, 24);
}

TEST(EntrantsTest, BestAndBoundAreThoseOfAllRows) {
  BenchResult result;
  result.problem.best_known = Microseconds(100);
  result.rows = {{.schedule = "a",
                  .step_time = Microseconds(110),
                  .lower_bound = Microseconds(80)},
                 {.schedule = "b",
                  .budget = Milliseconds(10),
                  .step_time = Microseconds(99),
                  .lower_bound = Microseconds(90)},
                 {.schedule = "c", .status = absl::UnknownError("no")}};
  EXPECT_EQ(result.best(), Microseconds(99));
  EXPECT_EQ(result.lower_bound(), Microseconds(90));
  EXPECT_EQ(result.Find("c", kZero), nullptr);
  EXPECT_EQ(EntrantsOf({result}).size(), 3u);
  EXPECT_EQ(EntrantsOf({result})[1].label(), "b 10 ms");
  const std::vector<double> excess = ExcessOf({"a", kZero}, {result});
  ASSERT_EQ(excess.size(), 1u);
  EXPECT_NEAR(excess[0], 11.0 / 99, 1e-12);
}

TEST(EntrantsTest, ABestKnownTimeBelowTheBoundOfAGraphIsNotTheBest) {
  BenchResult result;
  result.rows = {{.schedule = "pipeloom",
                  .step_time = Microseconds(110),
                  .lower_bound = Microseconds(90)}};
  result.problem.best_known = Microseconds(80);
  EXPECT_EQ(result.best(), Microseconds(110));
  EXPECT_FALSE(result.IsPossible(Microseconds(80)));
  EXPECT_TRUE(result.IsPossible(Microseconds(90)));
  EXPECT_TRUE(result.IsPossible(kZero)) << "not given";
  result.problem.job.emplace();  // Another partition may be faster.
  EXPECT_EQ(result.best(), Microseconds(80));
}

}  // namespace
}  // namespace pipeloom::studies
