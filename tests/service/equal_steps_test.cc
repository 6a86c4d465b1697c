// Equal steps: none gets the plan of a replica on other devices.
#include "gtest/gtest.h"
#include "tests/service/service_fixture.h"

namespace pipeloom::testing {
namespace {

// Replica 1 has a slow GPU, and its work is that of replica 0.
TEST(EqualStepsTest, AReplicaOnOtherDevicesGetsAPlanOfItsOwn) {
  service::ServerOptions options = TestOptions();
  options.core.threads = 1;
  TestService service(std::move(options));
  v1::OpenJobRequest open = SmallJobRequest(2, 50);
  v1::SlowGpu& slow =
      *open.mutable_job()->mutable_cluster_spec()->add_slow_gpus();
  slow.set_gpu(5);  // Rank 1 of replica 1.
  slow.set_factor(2);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  v1::SubmitBatchRequest batch;
  batch.set_job_id(opened.job_id());
  // A microbatch each, those of both replicas in turn.
  for (const int64_t text : {2000, 2000, 1900, 1900, 1800, 1800}) {
    batch.mutable_batch()->add_samples()->set_text_tokens(text);
  }
  ASSERT_TRUE(service.Submit(batch).ok());
  v1::GetPlanResponse plans[2];
  int64_t busy[2] = {};
  for (int32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(service.GetWhole(opened.job_id(), 0, r, &plans[r]).ok());
    EXPECT_GT(plans[r].evaluations(), 0) << r;
    for (const v1::Task& task : plans[r].plan().graph().tasks()) {
      if (task.rank() == 1) busy[r] += task.duration_ns();
    }
  }
  EXPECT_NEAR(static_cast<double>(busy[1]), 2 * static_cast<double>(busy[0]),
              0.01 * static_cast<double>(busy[0]));
}

}  // namespace
}  // namespace pipeloom::testing
