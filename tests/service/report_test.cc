// Reports of measured steps, and steps that cannot be.
#include <cstdint>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/service_fixture.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;

// A report of the tasks of a rank, each as long as planned.
v1::ReportTraceRequest ReportOf(const std::string& job,
                                const v1::RankPlan& plan) {
  v1::ReportTraceRequest report;
  report.set_job_id(job);
  *report.mutable_plan_checksum() = plan.plan_checksum();
  report.mutable_trace()->set_version(1);
  report.mutable_trace()->set_num_ranks(plan.num_ranks());
  int64_t time = 0;
  for (const v1::IndexedTask& t : plan.tasks()) {
    v1::Span& span = *report.mutable_trace()->add_spans();
    span.set_rank(plan.rank());
    span.set_stream(v1::STREAM_COMPUTE);
    span.set_kind(v1::SPAN_KIND_TASK);
    span.set_task(t.index());
    span.set_start_ns(time);
    span.set_end_ns(time += t.task().duration_ns());
  }
  report.mutable_trace()->set_finish_ns(time);
  return report;
}

TEST(ReportTest, AReportThatIsNoneOfThePlanIsRefused) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  v1::RankPlan plan;
  ASSERT_TRUE(service.Get(job, 0, 0, 0, &plan).ok());
  const v1::ReportTraceRequest good = ReportOf(job, plan);
  ASSERT_GT(good.trace().spans_size(), 2);
  v1::ReportTraceResponse response;
  const auto send = [&](const v1::ReportTraceRequest& request) {
    grpc::ClientContext context;
    service.Prepare(&context, std::chrono::seconds(30));
    return service.stub().ReportTrace(&context, request, &response);
  };
  const struct {
    const char* says;
    std::function<void(v1::StepTrace*)> change;
  } cases[] = {
      {"trace.spans[1].task is 100000; it must be in [0, ",
       [](v1::StepTrace* t) { t->mutable_spans(1)->set_task(100'000); }},
      {"trace.num_ranks is 7; the plan has 4",
       [](v1::StepTrace* t) { t->set_num_ranks(7); }},
      {"trace.spans[2].rank is 3; task ",
       [](v1::StepTrace* t) { t->mutable_spans(2)->set_rank(3); }},
      {"trace.spans[2].task is ",
       [](v1::StepTrace* t) {
         t->mutable_spans(2)->set_task(t->spans(0).task());
       }},
      {"trace.spans has no task", [](v1::StepTrace* t) { t->clear_spans(); }},
      {"trace.spans has no task",
       [](v1::StepTrace* t) {
         for (v1::Span& span : *t->mutable_spans()) {
           span.set_end_ns(span.start_ns());
         }
       }},
  };
  for (const auto& one : cases) {
    v1::ReportTraceRequest bad = good;
    one.change(bad.mutable_trace());
    const grpc::Status status = send(bad);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(one.says));
  }
  // Nothing was learned, and the rank has not reported yet. The factor that is
  // answered is the one that plans are made with.
  v1::ReportTraceRequest fast = good;
  for (v1::Span& span : *fast.mutable_trace()->mutable_spans()) {
    span.set_start_ns(span.start_ns() / 1000);
    span.set_end_ns(span.end_ns() / 1000);
  }
  ASSERT_TRUE(send(fast).ok());
  ASSERT_GT(response.corrections_size(), 0);
  for (const v1::CostCorrection& c : response.corrections()) {
    EXPECT_EQ(c.factor(), 0.125);
  }
  EXPECT_TRUE(send(good).ok());  // A repetition, which is ignored.
  EXPECT_EQ(response.corrections(0).factor(), 0.125);
  EXPECT_EQ(response.mean_task_time_error(), 0);
}

TEST(ReportTest, AStepThatCannotBeIsRefusedAtOnce) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  v1::GetPlanResponse whole;
  v1::RankPlan share;
  for (const int64_t step : {int64_t{-1}, int64_t{1} << 62}) {
    for (const grpc::Status& status : {service.GetWhole(job, step, 0, &whole),
                                       service.Get(job, step, 0, 0, &share)}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
      EXPECT_THAT(status.error_message(),
                  HasSubstr("it must be in [0, 281474976710656]"));
    }
  }
}

}  // namespace
}  // namespace pipeloom::testing
