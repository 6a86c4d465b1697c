// Tensors that ranks send and receive, which a schedule does not see, and the
// limits that are lowered for them.
#include "planner/step/plan_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "planner/lower/lower_plan.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;

// A schedule uses all the memory there is, and what is on its way besides is
// over on one rank, then on another: without margins that grow, some limits
// between two that work have no plan.
TEST(GrowingMarginsTest, EveryLimitAboveOneThatWorksHasAPlan) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    JobSpec job = SmallVlmJob();
    job.training.microbatches = 12;
    const BatchMetadata batch = RandomBatch(seed, 300, 5);
    ASSERT_OK_AND_ASSIGN(const PlanResult roomy, PlanFirstStep(job, batch));
    const std::vector<Bytes> peaks = roomy.peak_bytes();
    const int64_t most = std::max_element(peaks.begin(), peaks.end())->count();
    std::vector<int> failed;
    for (int percent = 99; percent >= 45; percent -= 3) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << " at " << percent << " %");
      job.training.memory_limit = Bytes(most * percent / 100);
      const auto result = PlanFirstStep(job, batch);
      if (!result.ok()) {
        failed.push_back(percent);
        continue;
      }
      EXPECT_THAT(failed, ::testing::IsEmpty()) << "but a lower limit works";
      EXPECT_THAT(ValidateExecutionPlan(result->plan), IsOk());
      for (const Bytes peak : PlanPeaks(result->plan)) {
        EXPECT_LE(peak, job.training.memory_limit);
      }
      ++planned;
    }
  }
  EXPECT_GT(planned, 40);
}

TEST(WithMarginTest, IsForTwoTensorsOnRanksWhoseLimitWasLowered) {
  JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const PlanResult result,
                       PlanFirstStep(job, RandomBatch(1, 200, 5)));
  const StageGraph& graph = result.plan.graph;
  IdVector<RankId, Bytes> largest(graph.num_ranks());
  for (const Dependency& edge : graph.edges()) {
    const RankId from = graph.task(edge.from).rank;
    const RankId to = graph.task(edge.to).rank;
    if (from == to) continue;
    largest[from] = std::max(largest[from], edge.payload);
    largest[to] = std::max(largest[to], edge.payload);
  }
  IdVector<RankId, RankSpec> limits = graph.ranks();
  EXPECT_EQ(WithMargin(graph, limits), limits);
  limits[RankId(1)].memory.limit -= Bytes(5);
  IdVector<RankId, RankSpec> expected = limits;
  expected[RankId(1)].memory.limit -= 2 * largest[RankId(1)];
  EXPECT_EQ(WithMargin(graph, limits), expected);
}

}  // namespace
}  // namespace pipeloom::planner
