#include "planner/step/refine_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "ir/plan/execution_plan.h"
#include "partition/batching/batch_split.h"
#include "planner/job/job_planner.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;

int64_t PairsOf(const ExecutionPlan& plan) {
  return std::count_if(
      plan.graph.tasks().begin(), plan.graph.tasks().end(),
      [](const Task& task) { return !task.overlaps.is_none(); });
}

int64_t WeightGradsOf(const ExecutionPlan& plan) {
  return std::count_if(
      plan.graph.tasks().begin(), plan.graph.tasks().end(),
      [](const Task& task) { return task.pass == Pass::kWeightGrad; });
}

// DIP fuses its backwards and fills memory with what it keeps, so that there is
// no room to put weight gradients off. With choices made anew there is, and the
// step gets shorter by it.
TEST(RefinePassesTest, FullMemoryLeavesRoomForPairs) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob("dip-vlm-m"));
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                       ShippedBatch("image_text.jsonl"));
  ASSERT_OK_AND_ASSIGN(
      const PlanResult once,
      PlanFirstStep(job, batch, {.schedule = "dip", .evaluations = 1}));
  ASSERT_OK_AND_ASSIGN(
      const PlanResult refined,
      PlanFirstStep(job, batch, {.schedule = "dip", .evaluations = 8}));
  EXPECT_THAT(ValidateExecutionPlan(refined.plan), IsOk());
  EXPECT_EQ(PairsOf(once.plan), 0);  // One evaluation leaves no refinement.
  EXPECT_GT(PairsOf(refined.plan), 50);
  EXPECT_LT(ToSeconds(refined.predicted.step_time()),
            0.97 * ToSeconds(once.predicted.step_time()));
  for (const RankId r : refined.plan.graph.rank_ids()) {
    EXPECT_LE(refined.peak_bytes()[static_cast<size_t>(r.value())],
              refined.plan.graph.rank(r).memory.limit);
  }
}

// A search that spends all the time that it is given leaves some of it for its
// passes, whose strategy ever it is.
class RefinesInTimeTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RefinesInTimeTest, UnderADeadlineToo) {
  ASSERT_OK_AND_ASSIGN(const JobSpec job, ShippedJob("dip-vlm-m"));
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                       ShippedBatch("image_text.jsonl"));
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(GetParam()));
  ASSERT_OK_AND_ASSIGN(const PreparedJob prepared,
                       PrepareJob(*strategy, costs, batch));
  ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                       partition::PackStep(job, batch, 0));
  PlanInput input{.packed = &packed};
  input.budget.max_evaluations = 40;
  ASSERT_OK_AND_ASSIGN(const PlanResult counted, PlanStep(prepared, input));
  EXPECT_GT(WeightGradsOf(counted.plan), 0);
  // Time passes as often as it is asked for.
  double now = 0;
  input.budget = {};
  input.budget.spent = [&] { return now += 0.002; };
  input.budget.expired = [&] { return (now += 0.002) >= 1; };
  ASSERT_OK_AND_ASSIGN(const PlanResult timed, PlanStep(prepared, input));
  EXPECT_GT(now, 0.9);
  // Whole backwards may be as good.
  EXPECT_TRUE(WeightGradsOf(timed.plan) > 0 ||
              timed.predicted.step_time() <= counted.predicted.step_time());
  EXPECT_LT(ToSeconds(timed.predicted.step_time()),
            1.02 * ToSeconds(counted.predicted.step_time()));
}

INSTANTIATE_TEST_SUITE_P(Searches, RefinesInTimeTest,
                         ::testing::Values("dip", "dip-order"),
                         [](const auto& test) {
                           return test.param == "dip" ? "dip" : "dip_order";
                         });

// Without tensor parallelism a split backward and its weight gradient take as
// long as a whole one, but the next rank can start sooner, and gaps of expert
// dispatch hide weight gradients. So strategies get no faster by anything that
// only makes the totals differ, such as a slower host.
struct EqualTotals {
  std::string job{};
  std::string schedule{};
  bool has_gaps = false;
};
class EqualTotalsTest : public ::testing::TestWithParam<EqualTotals> {};

TEST_P(EqualTotalsTest, PassesAreRefinedAllTheSame) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob(GetParam().job));
  job.training.microbatches = 8;
  ASSERT_EQ(job.parallel.tp, 1);
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch, ShippedBatch("text.jsonl"));
  const testing::FirstStepOptions settings = {.schedule = GetParam().schedule,
                                              .evaluations = 8};
  ASSERT_OK_AND_ASSIGN(const PlanResult fast,
                       PlanFirstStep(job, batch, settings));
  job.setup.host_per_kernel = Nanoseconds(1000);
  ASSERT_OK_AND_ASSIGN(const PlanResult slow,
                       PlanFirstStep(job, batch, settings));
  EXPECT_GT(WeightGradsOf(fast.plan), 0);
  EXPECT_EQ(PairsOf(fast.plan) > 0, GetParam().has_gaps);
  EXPECT_LE(ToSeconds(fast.predicted.step_time()),
            1.005 * ToSeconds(slow.predicted.step_time()));
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, EqualTotalsTest,
    ::testing::Values(EqualTotals{"llama3-8b", "1f1b"},
                      EqualTotals{"llama3-8b", "interleaved"},
                      EqualTotals{"deepseek-v2", "1f1b", true},
                      EqualTotals{"deepseek-v2", "zb-h1", true},
                      EqualTotals{"deepseek-v2", "pipeloom", true}),
    [](const auto& test) {
      std::string name = test.param.job + "_" + test.param.schedule;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// The search counts on weight gradients that fill gaps, all of them or a part,
// and refining has to make room for them. However short memory is, a step that
// has a plan without keeps one.
class CountingOnPairsTest : public ::testing::TestWithParam<double> {};

TEST_P(CountingOnPairsTest, LosesNoStepThatFits) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  job.cluster.num_nodes = 2;
  job.cluster.intra_node.bandwidth.bytes_per_second = GetParam();
  job.training.microbatches = 6;
  const BatchMetadata batch = testing::RandomBatch(4, 60, 3);
  ASSERT_OK_AND_ASSIGN(const PlanResult roomy,
                       PlanFirstStep(job, batch, {.schedule = "pipeloom"}));
  const std::vector<Bytes> peaks = roomy.peak_bytes();
  const Bytes most = *std::max_element(peaks.begin(), peaks.end());
  int fits = 0;
  int paired = 0;
  bool ends = false;
  for (int percent = 100; percent > 20 && !ends; --percent) {
    SCOPED_TRACE(percent);
    job.training.memory_limit = Bytes(most.count() * percent / 100);
    const auto plain =
        PlanFirstStep(job, batch, {.schedule = "pipeloom", .evaluations = 1});
    const auto refined =
        PlanFirstStep(job, batch, {.schedule = "pipeloom", .evaluations = 20});
    if (!plain.ok()) {
      ends = true;
      continue;
    }
    ASSERT_THAT(refined, IsOk());
    EXPECT_LE(refined->predicted.step_time(), plain->predicted.step_time());
    ++fits;
    paired += PairsOf(refined->plan) > 0;
  }
  EXPECT_TRUE(ends);
  EXPECT_GE(fits, 10);
  EXPECT_GT(paired, 5);
  // Nor at the very limit.
  const auto plan_within = [&](int64_t limit, int64_t evaluations) {
    job.training.memory_limit = Bytes(limit);
    return PlanFirstStep(job, batch,
                         {.schedule = "pipeloom", .evaluations = evaluations});
  };
  int64_t below = most.count() / 5;
  int64_t enough = most.count();
  while (enough - below > most.count() / 10'000) {
    const int64_t limit = (below + enough) / 2;
    (plan_within(limit, 1).ok() ? enough : below) = limit;
  }
  EXPECT_THAT(plan_within(enough, 20), IsOk());
}

// Bytes a second of links that hide all weight gradients, and less.
INSTANTIATE_TEST_SUITE_P(Links, CountingOnPairsTest,
                         ::testing::Values(1e10, 5e10, 1e11, 2e11));

}  // namespace
}  // namespace pipeloom::planner
