// Tests of the benchmark of schedules: journal, time, ranking.
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/graph/problem_suite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "studies/bench/bench_journal.h"
#include "studies/bench/bench_runs.h"
#include "studies/bench/entrants.h"
#include "studies/job/planned_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

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
TEST(BenchTimeTest, TheShippedSuiteTakesUnderEightMinutesOfSearch) {
  std::ifstream file(PIPELOOM_SOURCE_DIR "/workloads/bench/suite.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_OK_AND_ASSIGN(const formats::ProblemSuite suite,
                       formats::ParseProblemSuite(text, "suite.json"));
  BenchOptions options;
  options.schedules = UsualSchedules();
  options.budgets = {Milliseconds(10), Milliseconds(100), Seconds(1),
                     Seconds(10)};
  options.most_of_others = Seconds(1);
  EXPECT_LE(MostSearchTime(suite.problems, options), Seconds(480));
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

}  // namespace
}  // namespace pipeloom::studies
