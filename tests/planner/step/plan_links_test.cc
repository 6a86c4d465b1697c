// A plan keeps the links by which its step time is predicted; offload_test.cc
// has copies to the host.
#include <gtest/gtest.h>

#include <string>

#include "emulator/step/emulate_step.h"
#include "ir/text/text_format.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;

JobSpec WithSlowCards(NicSharing sharing) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = 6;
  job.cluster.gpus_per_node = 2;
  job.cluster.num_nodes = 16;
  job.cluster.nics_per_node = 1;
  job.cluster.nic_sharing = sharing;
  job.cluster.inter_node.bandwidth.bytes_per_second /= 400;
  return job;
}

JobSpec WithBlockingSends() {
  JobSpec job = WithSlowCards(NicSharing::kNone);
  job.setup.overlap = CommunicationOverlap::kNone;
  return job;
}

TEST(PlanLinksTest, APlanThatIsReadAgainTakesThePredictedTime) {
  struct Case {
    std::string name;
    JobSpec job;
    bool differs;  // From a link for each pair of ranks.
  };
  const Case cases[] = {
      {"links of pairs", WithSlowCards(NicSharing::kNone), false},
      {"cards in turn", WithSlowCards(NicSharing::kInTurn), true},
      {"cards shared", WithSlowCards(NicSharing::kFair), true},
      {"blocking sends", WithBlockingSends(), true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    bool differs = false;
    for (const std::string schedule : {"1f1b", "interleaved", "pipeloom"}) {
      SCOPED_TRACE(schedule);
      ASSERT_OK_AND_ASSIGN(
          const PlanResult result,
          PlanFirstStep(c.job, RandomBatch(3, 40, 3),
                        {.schedule = schedule, .evaluations = 20}));
      ASSERT_OK_AND_ASSIGN(const ExecutionPlan read,
                           ParseExecutionPlan(ToString(result.plan)));
      ASSERT_OK_AND_ASSIGN(const StepTrace trace, emulator::EmulateStep(read));
      EXPECT_EQ(trace.step_time(), read.predicted_step_time);
      EXPECT_EQ(trace.step_time(), result.predicted.step_time());
      ASSERT_OK_AND_ASSIGN(
          const StepTrace plain,
          emulator::EmulateStep(read, {.links = SharedLinks{}}));
      differs |= plain.step_time() < trace.step_time();
    }
    EXPECT_EQ(differs, c.differs);
  }
}

}  // namespace
}  // namespace pipeloom::planner
