#include "cli/commands/slow_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulator/stage/cluster_view.h"
#include "tests/cli/run_command.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::ShippedJob;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Args = std::vector<std::string>;

TEST(SlowFlagsTest, LinksTakeAFactorOrATimeMore) {
  ASSERT_OK_AND_ASSIGN(const SlowRankLink factor, ParseSlowLink("6-7=1.5"));
  EXPECT_EQ(factor,
            (SlowRankLink{.from = RankId(6), .to = RankId(7), .factor = 1.5}));
  ASSERT_OK_AND_ASSIGN(const SlowRankLink added, ParseSlowLink("7-6=+60ms"));
  EXPECT_EQ(added, (SlowRankLink{.from = RankId(7),
                                 .to = RankId(6),
                                 .added = Milliseconds(60)}));
  for (const char* const bad :
       {"", "6", "6-7", "6=7", "6-7=", "6-7=+", "6-7=+60", "6-7=60ms",
        "6-7-8=2", "a-b=2", "6-7=2=3"}) {
    const absl::Status status = ParseSlowLink(bad).status();
    EXPECT_TRUE(IsUsageError(status)) << bad;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string("--slow-link ") + bad),
                      HasSubstr("0-1=+5ms")));
  }
}

TEST(SlowFlagsTest, ASlowRankIsSlowInEveryReplicaAndNoOtherRankIs) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob("dip-vlm-s"));
  job.parallel.dp = 3;
  job.cluster.num_nodes = 64;
  ASSERT_THAT(ApplySlow({.ranks = {"2=1.4"}}, &job), IsOk());
  ASSERT_THAT(ValidateJobSpec(job), IsOk());
  const emulator::ClusterViews views = emulator::ViewsOf(job);
  for (const int32_t of : views.of_replica) {
    const emulator::ReplicaView& view = views.views[static_cast<size_t>(of)];
    for (const RankId r : view.ranks.ids()) {
      EXPECT_EQ(view.ranks[r].slow, r == RankId(2) ? 1.4 : 1);
    }
  }
}

TEST(SlowFlagsTest, RanksAndFactorsThatCannotBeAreUsageErrors) {
  ASSERT_OK_AND_ASSIGN(const JobSpec job, ShippedJob("dip-vlm-s"));
  const auto refused = [&](const SlowFlags& flags) {
    JobSpec changed = job;
    const absl::Status status = ApplySlow(flags, &changed);
    EXPECT_TRUE(IsUsageError(status));
    return std::string(status.message());
  };
  EXPECT_THAT(refused({.ranks = {"4=1.4"}}),
              HasSubstr("--slow 4=1.4: there is no rank 4; ranks are 0 to 3"));
  EXPECT_THAT(refused({.ranks = {"3=0.5"}}),
              HasSubstr("the factor is 0.5; it must be in [1, 1e6]"));
  EXPECT_THAT(refused({.ranks = {"3"}}),
              HasSubstr("--slow 3: give RANK=FACTOR"));
  EXPECT_THAT(
      refused({.links = {"3-4=2"}}),
      HasSubstr("--slow-link 3-4=2: the slow link 3-4: there is no rank 4"));
  EXPECT_THAT(refused({.links = {"1-1=2"}}),
              HasSubstr("it must join two ranks"));
}

const Args kPlan = {
    "plan",          "dip-vlm-s", "--batch",        "image_text",
    "--evaluations", "200",       "--partition",    "rule",
    "--replicas",    "1",         "--microbatches", "8",
    "--format",      "json"};

double StepTime(const Args& more) {
  Args args = kPlan;
  args.insert(args.end(), more.begin(), more.end());
  const Outcome outcome = Pipeloom(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out)["steps"][0]["step_time_us"]
      .get<double>();
}

TEST(SlowFlagsTest, PlanTakesLongerUnderThemButNoLongerThanTheRankAlone) {
  const double usual = StepTime({});
  const double rank = StepTime({"--slow", "2=1.4"});
  EXPECT_GT(rank, usual);
  EXPECT_LT(rank, 1.45 * usual);
  EXPECT_GE(StepTime({"--slow-link", "1-2=+20ms,2-1=+20ms"}), usual);
}

TEST(SlowFlagsTest, CommandsRefuseThemBeforeTheySearch) {
  for (const Args& more :
       {Args{"--slow", "9=2"}, Args{"--slow-link", "1-9=2"},
        Args{"--slow", "1=2", "--costs-from", "trace.json"},
        Args{"--slow", "1=2,1=3"}, Args{"--slow-link", "1-2=2,0-1=2,1-2=+5ms"},
        Args{"--workers", "0"}, Args{"--workers", "257"}}) {
    for (const char* const command : {"plan", "compare"}) {
      Args args = kPlan;
      args[0] = command;
      args.insert(args.end(), more.begin(), more.end());
      const Outcome outcome = Pipeloom(args);
      EXPECT_EQ(outcome.code, 2) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(more[0]));
    }
  }
}

TEST(SlowFlagsTest, EmulateRefusesARankOrLinkThatIsNamedTwice) {
  Args args = kPlan;
  args[0] = "emulate";
  args[5] = "1";
  const size_t count = args.size();
  args.insert(args.end(), {"--slow-rank", "1=2,0=2,1=3"});
  Outcome outcome = Pipeloom(args);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("--slow-rank 1=3: rank 1 is named twice; give it once"));
  args.resize(count);
  args.insert(args.end(), {"--slow-link", "0-1=2,1-0=2,0-1=3"});
  outcome = Pipeloom(args);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("--slow-link 0-1=3: link 0-1 is named twice; give it once"));
}

TEST(SlowFlagsTest, EmulateShowsNoBoundOfOtherDurations) {
  const auto bound = [](const Args& more) {
    Args args = kPlan;
    args[0] = "emulate";
    args[5] = "1";
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["lower_bound_us"];
  };
  EXPECT_GT(bound({}).get<double>(), 0);
  EXPECT_TRUE(bound({"--slow-rank", "0=0.5,1=0.5,2=0.5,3=0.5"}).is_null());
  EXPECT_TRUE(bound({"--slow-link", "0-1=0.5"}).is_null());
}

// Rows of `compare` under a slow rank: all are planned for it, on the
// partitions that they have without.
TEST(SlowFlagsTest, EveryRowOfCompareTakesLongerUnderThem) {
  const auto rows = [](const Args& more) {
    Args args = {"compare",        "dip-vlm-s",
                 "--batch",        "image_text",
                 "--strategies",   "1f1b,zb-v,pipeloom",
                 "--evaluations",  "60",
                 "--partition",    "rule",
                 "--replicas",     "1",
                 "--microbatches", "8",
                 "--format",       "json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["rows"];
  };
  const auto usual = rows({});
  const auto slow = rows({"--slow", "1=1.5"});
  ASSERT_EQ(usual.size(), 3);
  ASSERT_EQ(slow.size(), 3);
  for (size_t i = 0; i < usual.size(); ++i) {
    SCOPED_TRACE(usual[i]["schedule"].get<std::string>());
    const auto before = usual[i]["mean_step_time_us"].get<double>();
    const auto under = slow[i]["mean_step_time_us"].get<double>();
    EXPECT_GT(under, before);
    EXPECT_LT(under, 1.6 * before);
  }
}

TEST(SlowFlagsTest, AJobThatAsksForTooManyWorkersIsRefused) {
  Args args = kPlan;
  args.insert(args.end(), {"--set", "search.workers=257"});
  const Outcome outcome = Pipeloom(args);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("workers"), HasSubstr("256")));
}

TEST(SlowFlagsTest, PlansDependOnTheNumberOfWorkersAndTwoAreUsual) {
  const double usual = StepTime({});
  EXPECT_EQ(StepTime({"--workers", "2"}), usual);
  EXPECT_EQ(StepTime({"--set", "search.workers=2"}), usual);
  EXPECT_EQ(StepTime({"--workers", "8", "--threads", "1"}),
            StepTime({"--set", "search.workers=8", "--threads", "3"}));
}

}  // namespace
}  // namespace pipeloom::cli
