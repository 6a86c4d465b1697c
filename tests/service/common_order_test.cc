// Replicas that hold parts of one another's experts get one order of passes.
#include <algorithm>
#include <chrono>
#include <tuple>
#include <vector>

#include "emulator/cluster/meeting_replicas.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/execution_plan.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/plan_proto.h"
#include "tests/service/service_fixture.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;

// A job of which 2 replicas share experts; no evaluations: it searches for as
// long as its deadline lets it.
v1::OpenJobRequest ExpertJobRequest(int64_t evaluations) {
  JobSpec job = SmallExpertJob();
  job.cluster.num_nodes = 64;
  job.search.evaluations = evaluations;
  v1::OpenJobRequest request;
  *request.mutable_job() = convert::ToProto(job);
  *request.mutable_sample() = convert::ToProto(RandomBatch(1, 32, 0));
  return request;
}

// Returns the passes of experts in the order in which each rank runs them.
std::vector<std::vector<std::tuple<int32_t, int32_t>>> PassesOf(
    const v1::ExecutionPlan& plan) {
  std::vector<std::vector<std::tuple<int32_t, int32_t>>> passes;
  for (const v1::Program& program : plan.programs()) {
    auto& mine = passes.emplace_back();
    for (const v1::Instruction& instruction : program.instructions()) {
      if (!instruction.has_compute()) continue;
      const v1::Task& task = plan.graph().tasks(instruction.compute());
      if (task.kind() == v1::WEIGHT_GRAD) continue;
      mine.emplace_back(task.stage(), task.kind());
    }
  }
  return passes;
}

TEST(CommonOrderTest, AllReplicasOfAStepRunTheExpertsPassesInOneOrder) {
  for (const int64_t evaluations : {0, 30}) {
    TestService service(TestOptions());
    v1::OpenJobResponse opened;
    ASSERT_TRUE(service.Open(ExpertJobRequest(evaluations), &opened).ok());
    for (int64_t step = 0; step < 4; ++step) {
      v1::SubmitBatchRequest batch;
      batch.set_job_id(opened.job_id());
      batch.set_step(step);
      *batch.mutable_batch() = convert::ToProto(
          RandomBatch(static_cast<uint64_t>(10 + step), 400, 0));
      ASSERT_TRUE(service.Submit(batch).ok());
      v1::GetPlanResponse plans[2];
      for (int32_t r = 0; r < 2; ++r) {
        const grpc::Status status =
            service.GetWhole(opened.job_id(), step, r, &plans[r]);
        ASSERT_TRUE(status.ok()) << status.error_message();
        EXPECT_EQ(plans[r].plan().replica(), r);
        EXPECT_EQ(plans[r].replicas_that_meet(), 2);
        v1::RankPlan share;
        ASSERT_TRUE(service.Get(opened.job_id(), step, r, 0, &share).ok());
        EXPECT_EQ(share.replicas_that_meet(), 2);
      }
      EXPECT_EQ(PassesOf(plans[0].plan()), PassesOf(plans[1].plan())) << step;
    }
  }
}

TEST(CommonOrderTest, WhatIfCountsThatReplicasWaitForEachOther) {
  TestService service(TestOptions());
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(ExpertJobRequest(30), &opened).ok());
  v1::SubmitBatchRequest batch;
  batch.set_job_id(opened.job_id());
  *batch.mutable_batch() = convert::ToProto(RandomBatch(10, 400, 0));
  ASSERT_TRUE(service.Submit(batch).ok());
  std::vector<ExecutionPlan> plans;
  Duration alone{};
  for (int32_t r = 0; r < 2; ++r) {
    v1::GetPlanResponse plan;
    ASSERT_TRUE(service.GetWhole(opened.job_id(), 0, r, &plan).ok());
    ASSERT_OK_AND_ASSIGN(plans.emplace_back(), convert::FromProto(plan.plan()));
    alone = std::max(alone, plans.back().predicted_step_time);
  }
  JobSpec job = SmallExpertJob();
  job.cluster.num_nodes = 64;
  const ExecutionPlan* const both[] = {&plans[0], &plans[1]};
  ASSERT_OK_AND_ASSIGN(const emulator::MeetingStep together,
                       emulator::EmulateMeeting(job, both));
  ASSERT_GT(together.step_time, alone);

  v1::WhatIfRequest request;
  request.set_job_id(opened.job_id());
  request.set_evaluations(30);
  *request.mutable_batch() = batch.batch();
  request.add_variants();
  v1::WhatIfResponse response;
  grpc::ClientContext context;
  service.Prepare(&context, std::chrono::seconds(60));
  const grpc::Status status =
      service.stub().WhatIf(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.rows(0).error(), "");
  EXPECT_EQ(response.rows(0).figures().step_time_ns(),
            together.step_time.count());
}

TEST(CommonOrderTest, ReplicasWithoutAsMuchWorkAreRefused) {
  JobSpec job = SmallVlmJob();
  job.cluster.num_nodes = 64;
  job.parallel.dp = 2;
  job.training.optimizer_sharding = OptimizerSharding::kZero3;
  job.training.microbatch_samples = 1;
  job.search.evaluations = 10;
  v1::OpenJobRequest request;
  *request.mutable_job() = convert::ToProto(job);
  *request.mutable_sample() = convert::ToProto(RandomBatch(1, 32, 1));
  TestService service(TestOptions());
  v1::OpenJobResponse opened;
  const grpc::Status open = service.Open(request, &opened);
  ASSERT_TRUE(open.ok()) << open.error_message();
  v1::SubmitBatchRequest batch;
  batch.set_job_id(opened.job_id());
  *batch.mutable_batch() = convert::ToProto(RandomBatch(1, 32, 1));
  batch.mutable_batch()->mutable_samples(0)->clear_images();
  ASSERT_TRUE(service.Submit(batch).ok());
  v1::GetPlanResponse plan;
  const grpc::Status status = service.GetWhole(opened.job_id(), 0, 1, &plan);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("would wait for ever"));
}

TEST(CommonOrderTest, AReplicaAloneIsRefused) {
  TestService service(TestOptions());
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(ExpertJobRequest(30), &opened).ok());
  v1::SubmitBatchRequest batch;
  batch.set_job_id(opened.job_id());
  batch.set_replica(1);
  *batch.mutable_batch() = convert::ToProto(RandomBatch(3, 200, 0));
  ASSERT_TRUE(service.Submit(batch).ok());
  v1::GetPlanResponse plan;
  const grpc::Status status = service.GetWhole(opened.job_id(), 0, 1, &plan);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("replica is 1; send the whole batch of step 0"));
}

}  // namespace
}  // namespace pipeloom::testing
