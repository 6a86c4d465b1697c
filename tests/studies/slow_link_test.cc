// Plans that are searched under a slow link or rank, against those of fixed
// schedules under the same, on the job of PipeMorph's runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "emulator/step/emulate_step.h"
#include "formats/job/spec_loader.h"
#include "planner/job/job_planner.h"
#include "studies/backtest/emulate_against.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

// The job of pipemorph.csv: 14B on 8 ranks, 24 microbatches.
PlannedRun PipeMorphRun() {
  const auto runs = formats::ParseMeasuredRuns(
      "framework,run,cluster,shape,layout,setup,microbatch,global_batch,"
      "sequence,step_ms,peak_gib,split\n"
      "pipemorph-1f1b,14B,h800-sxm,layers=46 hidden=5120 heads=32 ffn=20480 "
      "vocab=50304,tp=1 pp=8 dp=1,attention=unfused sharding=none overlap=none "
      "host_us=30 schedule=1f1b p2p=batched,1,24,1024,872.2,,\n",
      "t.csv");
  EXPECT_THAT(runs.status(), IsOk());
  const auto cluster = formats::LoadCluster(
      "h800-sxm", PIPELOOM_SOURCE_DIR "/workloads",
      [](const std::string& path) { return formats::ReadFile(path); });
  EXPECT_THAT(cluster.status(), IsOk());
  auto planned = PlanMeasuredRun(runs.value()[0], *cluster);
  EXPECT_THAT(planned.status(), IsOk());
  return *std::move(planned);
}

JobSpec WithSlowLink(JobSpec job, Duration added) {
  for (const auto& [from, to] : {std::pair(6, 7), std::pair(7, 6)}) {
    job.slow_rank_links.push_back(
        {.from = RankId(from), .to = RankId(to), .added = added});
  }
  return job;
}

absl::StatusOr<planner::PlanResult> PlanOf(const PlannedRun& run,
                                           const JobSpec& job,
                                           const std::string& strategy,
                                           int64_t evaluations) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto planner,
      planner::JobPlanner::Create(
          job, run.batch, {.strategy = strategy, .partition = run.partition}));
  return planner->PlanStep(run.batch,
                           {.budget = {.max_evaluations = evaluations}});
}

double Ms(const planner::PlanResult& plan) {
  return ToMilliseconds(plan.predicted.step_time());
}

TEST(SlowLink, APlanOfAFixedScheduleTakesWhatEmulatingItOnTheLinkTakes) {
  const PlannedRun run = PipeMorphRun();
  ASSERT_OK_AND_ASSIGN(const planner::PlanResult healthy,
                       PlanOf(run, run.job, "1f1b", 1));
  for (const double factor : {1.0, 20.0, 1000.0}) {
    JobSpec job = run.job;
    emulator::EmulateOptions options;
    for (const auto& [from, to] : {std::pair(6, 7), std::pair(7, 6)}) {
      job.slow_rank_links.push_back(
          {.from = RankId(from), .to = RankId(to), .factor = factor});
      options.slow_links.push_back(
          {.from = RankId(from), .to = RankId(to), .factor = factor});
    }
    ASSERT_OK_AND_ASSIGN(const planner::PlanResult slow,
                         PlanOf(run, job, "1f1b", 1));
    ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                         emulator::EmulateStep(healthy.plan, options));
    EXPECT_NEAR(Ms(slow), ToMilliseconds(trace.step_time()), 0.01 * Ms(slow))
        << factor;
    EXPECT_EQ(slow.plan.predicted_step_time, slow.predicted.step_time());
  }
}

TEST(SlowLink, TheSearchHidesALinkThatFixedSchedulesWaitFor) {
  PlannedRun run = PipeMorphRun();
  run.job.training.memory_limit = Bytes(int64_t{76} << 30);  // A GPU has 80 GB.
  const JobSpec job = WithSlowLink(run.job, Milliseconds(60));
  std::map<std::string, double> healthy;
  std::map<std::string, double> slow;
  for (const std::string strategy : {"1f1b", "zb-2p", "pipeloom"}) {
    SCOPED_TRACE(strategy);
    ASSERT_OK_AND_ASSIGN(const planner::PlanResult one,
                         PlanOf(run, run.job, strategy, 600));
    ASSERT_OK_AND_ASSIGN(const planner::PlanResult other,
                         PlanOf(run, job, strategy, 600));
    EXPECT_THAT(ValidateExecutionPlan(other.plan), IsOk());
    ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                         emulator::EmulateStep(other.plan));
    EXPECT_EQ(other.predicted.step_time(), trace.step_time());
    EXPECT_LE(other.lower_bound, other.predicted.step_time());
    for (const Bytes peak : other.peak_bytes()) {
      EXPECT_LE(peak, run.job.training.memory_limit);
    }
    healthy[strategy] = Ms(one);
    slow[strategy] = Ms(other);
    std::printf("%s: %.1f ms, on the slow link %.1f ms\n", strategy.c_str(),
                Ms(one), Ms(other));
  }
  EXPECT_GT(slow["1f1b"], 2 * healthy["1f1b"]);
  EXPECT_GT(slow["zb-2p"], 2 * healthy["zb-2p"]);
  EXPECT_LT(slow["pipeloom"], 0.6 * slow["zb-2p"]);
  EXPECT_LT(slow["pipeloom"], 1.1 * healthy["pipeloom"]);
  // No gap of a backward hides weight gradients here: they fill idle time.
  EXPECT_LE(healthy["pipeloom"], healthy["zb-2p"]);
}

TEST(SlowLink, LinksThatDoNotExistAreRefused) {
  const PlannedRun run = PipeMorphRun();
  const auto refused = [&](SlowRankLink link) {
    JobSpec job = run.job;
    job.slow_rank_links = {link};
    return planner::JobPlanner::Create(job, run.batch,
                                       {.partition = run.partition})
        .status();
  };
  EXPECT_THAT(refused({.from = RankId(6), .to = RankId(8)}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("the slow link 6-8: there is no rank 8; "
                                  "ranks are 0 to 7")));
  EXPECT_THAT(refused({.from = RankId(2), .to = RankId(2)}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("it must join two ranks")));
  EXPECT_THAT(
      refused({.from = RankId(2), .to = RankId(3), .factor = 0.5}),
      FailsWith(absl::StatusCode::kInvalidArgument,
                HasSubstr("its factor is 0.5; it must be in [1, 1e6]")));
}

}  // namespace
}  // namespace pipeloom::studies
