// The number of search workers of a served job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/service/service_fixture.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

// Returns the plan that a service with `usual` workers makes for a job that
// asks for `own`.
v1::GetPlanResponse PlanBy(int32_t usual, int32_t own) {
  service::ServerOptions options = TestOptions();
  options.core.workers = usual;
  TestService service(std::move(options));
  v1::OpenJobRequest request = SmallJobRequest(/*dp=*/1, /*evaluations=*/60);
  request.set_job_id("job");
  request.mutable_job()->mutable_search()->set_workers(own);
  v1::OpenJobResponse opened;
  EXPECT_TRUE(service.Open(request, &opened).ok());
  v1::SubmitBatchResponse submitted;
  EXPECT_TRUE(
      service.Submit(SmallBatch("job", 0, 5, /*samples=*/32), &submitted).ok());
  v1::GetPlanResponse plan;
  EXPECT_TRUE(service.GetWhole("job", 0, 0, &plan).ok());
  return plan;
}

TEST(ServedWorkersTest, AJobsOwnNumberGoesBeforeThatOfTheService) {
  const v1::GetPlanResponse two = PlanBy(2, 0);
  const v1::GetPlanResponse eight = PlanBy(8, 0);
  EXPECT_EQ(PlanBy(2, 8).plan().SerializeAsString(),
            eight.plan().SerializeAsString());
  EXPECT_EQ(PlanBy(8, 2).plan().SerializeAsString(),
            two.plan().SerializeAsString());
  EXPECT_NE(two.plan().SerializeAsString(), eight.plan().SerializeAsString());
}

TEST(ServedWorkersTest, AJobThatAsksForMoreThanThereMayBeIsRefused) {
  TestService service(TestOptions());
  v1::OpenJobRequest request = SmallJobRequest();
  request.mutable_job()->mutable_search()->set_workers(257);
  v1::OpenJobResponse opened;
  const grpc::Status status = service.Open(request, &opened);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("workers"));
}

}  // namespace
}  // namespace pipeloom::testing
