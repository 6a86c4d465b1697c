// Opening jobs whose partition is searched for, or whose samples are balanced.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "emulator/cost/profile_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/execution_plan.h"
#include "partition/batching/balance_step.h"
#include "pipeloom/v1/service_state.pb.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/plan_proto.h"
#include "service/core/planner_core.h"
#include "service/jobs/job_files.h"
#include "service/os/state_dir.h"
#include "tests/service/service_fixture.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

constexpr int64_t kAnHourUs = int64_t{3600} * 1'000'000;

// A search of its partitions takes a core for many seconds.
v1::OpenJobRequest LongSearch(const std::string& id) {
  v1::OpenJobRequest request;
  request.set_shipped_job("dip-vlm-l");
  *request.mutable_sample() = convert::ToProto(RandomBatch(1, 512, 4));
  request.set_partition_time_us(kAnHourUs);
  request.set_job_id(id);
  return request;
}

v1::OpenJobRequest BalancedJob() {
  v1::OpenJobRequest request = SmallJobRequest(/*dp=*/2, /*evaluations=*/50);
  request.mutable_job()->mutable_training()->set_assignment(
      v1::SAMPLE_ASSIGNMENT_BALANCED);
  return request;
}

class CoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<service::PlannerCore> Start(
      std::chrono::nanoseconds partition_time) {
    service::CoreOptions options = TestOptions().core;
    options.partition_time = partition_time;
    auto core = service::PlannerCore::Create(options, &log_, &metrics_);
    EXPECT_THAT(core, IsOk());
    return *std::move(core);
  }

  service::Log log_{service::LogLevel::kOff, nullptr};
  service::Metrics metrics_{};
};

TEST_F(CoreTest, ASearchForAPartitionEndsWithTheServicesTime) {
  const auto core = Start(std::chrono::milliseconds(300));
  ASSERT_OK_AND_ASSIGN(const v1::OpenJobResponse opened,
                       core->OpenJob(LongSearch("long")));
  EXPECT_TRUE(opened.partition_cut_short());
  EXPECT_GE(opened.partitions_tried(), 1);
  // Who asks again gets what is there.
  ASSERT_OK_AND_ASSIGN(const v1::OpenJobResponse again,
                       core->OpenJob(LongSearch("long")));
  EXPECT_TRUE(again.existed());
  EXPECT_TRUE(
      MessageDifferencer::Equals(again.partition(), opened.partition()));
}

TEST_F(CoreTest, ASearchForAPartitionEndsBeforeTheCallersDeadline) {
  const auto core = Start(std::chrono::hours(1));
  ASSERT_OK_AND_ASSIGN(
      const v1::OpenJobResponse opened,
      core->OpenJob(LongSearch("long"), service::PlannerCore::Clock::now() +
                                            std::chrono::milliseconds(400)));
  EXPECT_TRUE(opened.partition_cut_short());
}

TEST_F(CoreTest, ACallerWhoLeavesEndsTheSearchAndOpensNothing) {
  const auto core = Start(std::chrono::hours(1));
  std::stop_source stop;
  std::jthread leave([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    stop.request_stop();
  });
  EXPECT_THAT(core->OpenJob(LongSearch("long"),
                            service::PlannerCore::Clock::time_point::max(),
                            stop.get_token()),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("left")));
  EXPECT_THAT(core->Submit(SmallBatch("long", 0, 1)),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("long")));
  // The next one is free to open it.
  v1::OpenJobRequest request = LongSearch("long");
  request.set_partition_time_us(0);
  EXPECT_THAT(core->OpenJob(request), IsOk());
}

TEST_F(CoreTest, AJobThatSaysNothingIsSearchedAsLongAsTheServiceDoes) {
  service::CoreOptions options = TestOptions().core;
  options.usual_partition_time = std::chrono::minutes(1);
  int32_t kept = 0;
  std::optional<Partition> found;
  options.keep_partition = [&](const Fingerprint&, const JobSpec&,
                               const Partition& partition) {
    ++kept;
    found = partition;
  };
  options.find_partition = [&](const Fingerprint&, const JobSpec&) {
    return found;
  };
  const auto core = service::PlannerCore::Create(options, &log_, &metrics_);
  ASSERT_THAT(core, IsOk());
  v1::OpenJobRequest request = SmallJobRequest();
  request.set_job_id("usual");
  ASSERT_OK_AND_ASSIGN(const v1::OpenJobResponse usual,
                       (*core)->OpenJob(request));
  EXPECT_GE(usual.partitions_tried(), 1);
  EXPECT_EQ(kept, 1);

  // The next job of this content gets it without a search.
  request.set_job_id("next");
  ASSERT_OK_AND_ASSIGN(const v1::OpenJobResponse next,
                       (*core)->OpenJob(request));
  EXPECT_EQ(next.partitions_tried(), 0);
  EXPECT_EQ(kept, 1);
  EXPECT_TRUE(MessageDifferencer::Equals(next.partition(), usual.partition()));

  // A caller who asks for none gets the rule's, and is told of a job that was
  // searched.
  request.set_partition_time_us(0);
  EXPECT_THAT((*core)->OpenJob(request),
              FailsWith(absl::StatusCode::kAlreadyExists,
                        HasSubstr("with other content")));
  request.set_job_id("rule");
  ASSERT_OK_AND_ASSIGN(const v1::OpenJobResponse rule,
                       (*core)->OpenJob(request));
  EXPECT_EQ(rule.partitions_tried(), 0);
  EXPECT_EQ(kept, 1);
}

// The lessons of sample steps are part of the job, unless it searches by
// evaluations. Their search ends with the service's time, the caller's
// deadline, and when nobody wants the job any more.
TEST_F(CoreTest, SampleStepsAreSearchedWhenAJobIsOpened) {
  service::PartitionEffort effort;
  int32_t begun = 0;
  effort.warm_up = [&] {
    ++begun;
    planner::SearchBudget budget;
    budget.max_evaluations = 100;
    return budget;
  };
  const auto create = [&](const BatchMetadata& sample) {
    return service::ServedJob::Create("job", SmallVlmJob(), sample,
                                      std::nullopt, {}, effort);
  };
  ASSERT_OK_AND_ASSIGN(const auto job, create(RandomBatch(1, 400, 4)));
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(job->warm_up().size(), 4);
  std::stop_source stop;
  stop.request_stop();
  effort.warm_up = [&] {
    planner::SearchBudget budget;
    budget.stop = stop.get_token();
    budget.needs_answer = false;
    return budget;
  };
  EXPECT_THAT(create(RandomBatch(1, 400, 4)).status(),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("stopped")));
  effort.warm_up = nullptr;
  ASSERT_OK_AND_ASSIGN(const auto cold, create(RandomBatch(1, 400, 4)));
  EXPECT_TRUE(cold->warm_up().empty());

  service::CoreOptions options = TestOptions().core;
  options.warm_up_time = std::chrono::hours(1);
  options.partition_time = std::chrono::milliseconds(300);
  const auto core = service::PlannerCore::Create(options, &log_, &metrics_);
  ASSERT_THAT(core, IsOk());
  v1::OpenJobRequest request = SmallJobRequest(/*dp=*/1, /*evaluations=*/0);
  request.set_job_id("warm");
  EXPECT_THAT((*core)->OpenJob(request), IsOk());
  options.partition_time = std::chrono::hours(1);
  const auto slow = service::PlannerCore::Create(options, &log_, &metrics_);
  ASSERT_THAT(slow, IsOk());
  const auto open_until = [&](std::chrono::milliseconds from_now) {
    return (*slow)->OpenJob(request,
                            service::PlannerCore::Clock::now() + from_now);
  };
  EXPECT_THAT(open_until(std::chrono::milliseconds(400)), IsOk());
  request.set_job_id("late");
  EXPECT_THAT(open_until(std::chrono::milliseconds(-100)), IsOk());
}

// They are kept with a partition that was searched, and found with it.
TEST_F(CoreTest, LessonsAreKeptWithASearchedPartition) {
  service::CoreOptions options = TestOptions().core;
  options.usual_partition_time = std::chrono::minutes(1);
  options.searched_warm_up_time = std::chrono::milliseconds(200);
  std::optional<Partition> partition;
  options.keep_partition = [&](const Fingerprint&, const JobSpec&,
                               const Partition& searched) {
    partition = searched;
  };
  options.find_partition = [&](const Fingerprint&, const JobSpec&) {
    return partition;
  };
  std::optional<service::Lessons> lessons;
  int32_t found = 0;
  options.keep_lessons = [&](const Fingerprint&, const Partition& of,
                             const service::Lessons& made) {
    EXPECT_EQ(of, partition);
    lessons = made;
  };
  options.find_lessons = [&](const Fingerprint&, const Partition& of) {
    EXPECT_EQ(of, partition);
    if (lessons.has_value()) ++found;
    return lessons;
  };
  const auto core = service::PlannerCore::Create(options, &log_, &metrics_);
  ASSERT_THAT(core, IsOk());
  v1::OpenJobRequest request = SmallJobRequest(/*dp=*/1, /*evaluations=*/0);
  const auto open = [&](const std::string& id, bool hasty = false) {
    using Clock = service::PlannerCore::Clock;
    request.set_job_id(id);
    EXPECT_THAT(
        (*core)->OpenJob(request,
                         hasty ? Clock::now() + std::chrono::milliseconds(100)
                               : Clock::time_point::max()),
        IsOk());
  };
  // Those of a search that was cut short by the caller are not kept.
  open("hasty", true);
  EXPECT_FALSE(lessons.has_value());
  open("first");
  ASSERT_TRUE(lessons.has_value());
  EXPECT_FALSE(lessons->empty());
  EXPECT_EQ(found, 0);
  open("second");
  EXPECT_EQ(found, 1);
  request = SmallJobRequest(/*dp=*/1, /*evaluations=*/50);
  open("by-evaluations");
  EXPECT_EQ(found, 1);
}

TEST_F(CoreTest, LessonsAreThereAfterARestart) {
  const TempFolder folder;
  service::CoreOptions options = TestOptions().core;
  options.state_dir = folder.path();
  options.warm_up_time = std::chrono::milliseconds(200);
  v1::OpenJobRequest request = SmallJobRequest(/*dp=*/1, /*evaluations=*/0);
  request.set_job_id("warm");
  const auto stored = [&] {
    v1::StoredJob job;
    const auto state = service::StateDir::Open(folder.path());
    EXPECT_THAT(state, IsOk());
    const absl::StatusOr<std::string> bytes =
        (*state)->Read(service::JobFileName("warm"));
    EXPECT_THAT(bytes, IsOk());
    EXPECT_TRUE(job.ParseFromString(*bytes));
    return job;
  };
  {
    const auto core = service::PlannerCore::Create(options, &log_, &metrics_);
    ASSERT_THAT(core, IsOk());
    ASSERT_THAT((*core)->OpenJob(request), IsOk());
  }
  const v1::StoredJob before = stored();
  EXPECT_GE(before.warm_up().steps_size(), 1);
  options.warm_up_time = {};
  {
    const auto core = service::PlannerCore::Create(options, &log_, &metrics_);
    ASSERT_THAT(core, IsOk());
    // A new attempt is written with all of the job.
    v1::SubmitBatchRequest batch = SmallBatch("warm", 0, 5);
    batch.set_attempt(1);
    ASSERT_THAT((*core)->Submit(batch), IsOk());
  }
  const v1::StoredJob after = stored();
  EXPECT_EQ(after.attempt(), 1);
  EXPECT_TRUE(MessageDifferencer::Equals(after.warm_up(), before.warm_up()));
}

TEST(OpeningTest, AllWhoOpenAJobAtATimeGetOnePartitionSearchedForOnce) {
  TestService service;
  v1::OpenJobRequest request = SmallJobRequest();
  request.set_partition_time_us(kAnHourUs);
  std::vector<v1::OpenJobResponse> responses(6);
  {
    std::vector<std::jthread> callers;
    for (v1::OpenJobResponse& response : responses) {
      callers.emplace_back([&] {
        grpc::ClientContext context;
        service.Prepare(&context, std::chrono::milliseconds(60'000));
        EXPECT_TRUE(service.stub().OpenJob(&context, request, &response).ok());
      });
    }
  }
  EXPECT_EQ(std::count_if(responses.begin(), responses.end(),
                          [](const auto& r) { return !r.existed(); }),
            1);
  EXPECT_GE(responses[0].partitions_tried(), 2);
  for (const v1::OpenJobResponse& response : responses) {
    EXPECT_EQ(response.job_id(), responses[0].job_id());
    EXPECT_TRUE(MessageDifferencer::Equals(response.partition(),
                                           responses[0].partition()));
  }
}

TEST(OpeningTest, ANegativeTimeIsRefused) {
  TestService service;
  v1::OpenJobRequest request = SmallJobRequest();
  request.set_partition_time_us(-1);
  v1::OpenJobResponse response;
  const grpc::Status status = service.Open(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("partition_time_us is -1"));
}

TEST(OpeningTest, AJobWhoseDeviceHasABadProfileIsRefused) {
  service::ServerOptions options = TestOptions();
  options.core.profiles = [](const std::string& device)
      -> absl::StatusOr<std::shared_ptr<const DeviceProfile>> {
    return absl::InvalidArgumentError("profile of " + device + " is bad");
  };
  TestService service(std::move(options));
  v1::OpenJobResponse response;
  const grpc::Status status = service.Open(SmallJobRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              HasSubstr("profile of " + SmallVlmJob().cluster.device.name));
}

// The same by the libraries alone, as `pipeloom plan --assignment balanced`
// goes about it.
TEST(BalancedJobTest, SamplesAreDealtAndPlannedAsByThePlanCommand) {
  TestService service;
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(BalancedJob(), &opened).ok());
  ASSERT_TRUE(service.Submit(SmallBatch(opened.job_id(), 0, 7)).ok());

  JobSpec job = SmallVlmJob();
  job.parallel.dp = 2;
  job.cluster.num_nodes = 64;
  job.search.evaluations = 50;
  job.training.assignment = SampleAssignment::kBalanced;
  const emulator::StageCostModel costs(
      job,
      emulator::MakeOpCosts(
          job.cluster, job.parallel,
          [](const std::string&) -> const DeviceProfile* { return nullptr; }));
  const BatchMetadata sample = RandomBatch(1, 32, 2);
  ASSERT_OK_AND_ASSIGN(const auto strategy,
                       planner::MakeStrategy(job.search.schedule));
  ASSERT_OK_AND_ASSIGN(const planner::PreparedJob prepared,
                       planner::PrepareJob(*strategy, costs, sample));
  ASSERT_OK_AND_ASSIGN(const auto sample_costs,
                       partition::SampleCosts::Create(job, costs, sample));
  ASSERT_OK_AND_ASSIGN(const partition::PackedStep in_order,
                       partition::PackStep(job, RandomBatch(7, 24, 2), 0));
  ASSERT_EQ(in_order.num_samples, 24);
  const partition::PackedStep packed =
      partition::BalanceStep(job, sample_costs, in_order);
  ASSERT_NE(packed.packed, in_order.packed);
  for (int32_t replica = 0; replica < 2; ++replica) {
    planner::PlanInput input;
    input.packed = &packed;
    input.replica = replica;
    input.seed = job.search.seed;
    input.budget.max_evaluations = 50;
    ASSERT_OK_AND_ASSIGN(planner::PlanResult expected,
                         planner::PlanStep(prepared, input));
    v1::GetPlanResponse whole;
    ASSERT_TRUE(service.GetWhole(opened.job_id(), 0, replica, &whole).ok());
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         convert::FromProto(whole.plan()));
    EXPECT_EQ(Checksum(plan), Checksum(expected.plan)) << replica;
    ASSERT_EQ(static_cast<size_t>(whole.microbatches_size()),
              packed.packed[static_cast<size_t>(replica)].size());
    for (int m = 0; m < whole.microbatches_size(); ++m) {
      std::vector<SampleId> samples;
      for (const v1::PlannedSample& s : whole.microbatches(m).samples()) {
        samples.emplace_back(static_cast<int32_t>(s.sample()));
      }
      EXPECT_EQ(
          samples,
          packed.packed[static_cast<size_t>(replica)][static_cast<size_t>(m)]);
    }
  }
}

TEST(BalancedJobTest, ARestartDealsTheSamplesTheSameWay) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  std::string id;
  v1::GetPlanResponse before;
  {
    TestService service(options);
    v1::OpenJobResponse opened;
    ASSERT_TRUE(service.Open(BalancedJob(), &opened).ok());
    id = opened.job_id();
    ASSERT_TRUE(service.Submit(SmallBatch(id, 0, 7)).ok());
    ASSERT_TRUE(service.GetWhole(id, 0, 0, &before).ok());
  }
  TestService service(options);
  // Another step with the same samples: packed, dealt and planned anew.
  ASSERT_TRUE(service.Submit(SmallBatch(id, 1, 7)).ok());
  v1::GetPlanResponse after;
  ASSERT_TRUE(service.GetWhole(id, 1, 0, &after).ok());
  ASSERT_EQ(after.microbatches_size(), before.microbatches_size());
  for (int m = 0; m < after.microbatches_size(); ++m) {
    EXPECT_TRUE(MessageDifferencer::Equals(after.microbatches(m),
                                           before.microbatches(m)));
  }
}

TEST(BalancedJobTest, TheTrainersOwnMicrobatchesAreKept) {
  TestService service;
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(BalancedJob(), &opened).ok());
  v1::SubmitBatchRequest request = SmallBatch(opened.job_id(), 0, 3, 4);
  request.set_replica(1);
  for (const int32_t m : {1, 0, 1, 0}) request.add_microbatch_of(m);
  ASSERT_TRUE(service.Submit(request).ok());
  v1::RankPlan share;
  ASSERT_TRUE(service.Get(opened.job_id(), 0, 1, 0, &share).ok());
  ASSERT_EQ(share.microbatches_size(), 2);
  EXPECT_EQ(share.microbatches(0).samples(0).sample(), 1);
  EXPECT_EQ(share.microbatches(0).samples(1).sample(), 3);
}

TEST(BalancedJobTest, SamplesToPriceByAreNeeded) {
  TestService service;
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(SmallJobRequest(), &opened).ok());
  v1::OpenJobRequest request = BalancedJob();
  *request.mutable_partition() = opened.partition();
  request.clear_sample();
  const grpc::Status status = service.Open(request, &opened);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("sample.samples is empty"));
}

// The same layers, cut elsewhere: a layer more on one rank.
v1::Partition CutElsewhere(v1::Partition partition) {
  for (int i = 0; i + 1 < partition.stages_size(); ++i) {
    v1::PartitionStage& first = *partition.mutable_stages(i);
    v1::PartitionStage& second = *partition.mutable_stages(i + 1);
    if (first.module() != second.module()) continue;
    const int by = first.num_layers() > 1 ? 1 : -1;
    if (second.num_layers() + by < 1) continue;
    first.set_num_layers(first.num_layers() - by);
    second.set_first_layer(second.first_layer() - by);
    second.set_num_layers(second.num_layers() + by);
    return partition;
  }
  ADD_FAILURE() << "no two stages share a module's layers";
  return partition;
}

TEST(ResumedJobTest, AServiceThatForgotItOpensItWithThatPartition) {
  v1::OpenJobResponse opened;
  ASSERT_TRUE(TestService().Open(SmallJobRequest(), &opened).ok());
  v1::OpenJobRequest request = SmallJobRequest();
  *request.mutable_resume() = CutElsewhere(opened.partition());
  // Would take an hour if the partition were searched for.
  request.set_partition_time_us(kAnHourUs);
  TestService service;
  v1::OpenJobResponse resumed;
  ASSERT_TRUE(service.Open(request, &resumed).ok());
  EXPECT_FALSE(resumed.existed());
  EXPECT_EQ(resumed.partitions_tried(), 0);
  EXPECT_TRUE(
      MessageDifferencer::Equals(resumed.partition(), request.resume()));
  ASSERT_TRUE(service.Submit(SmallBatch(resumed.job_id(), 0, 3)).ok());
  v1::GetPlanResponse plan;
  EXPECT_TRUE(service.GetWhole(resumed.job_id(), 0, 0, &plan).ok());

  // Who asks for the first time finds the same job.
  v1::OpenJobRequest first = request;
  first.clear_resume();
  v1::OpenJobResponse again;
  ASSERT_TRUE(service.Open(first, &again).ok());
  EXPECT_TRUE(again.existed());
  EXPECT_EQ(again.job_id(), resumed.job_id());
  EXPECT_TRUE(MessageDifferencer::Equals(again.partition(), request.resume()));
}

TEST(ResumedJobTest, TheJobMustNotBeOpenWithAnotherPartition) {
  TestService service;
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(SmallJobRequest(), &opened).ok());
  v1::OpenJobRequest request = SmallJobRequest();
  *request.mutable_resume() = opened.partition();
  v1::OpenJobResponse again;
  ASSERT_TRUE(service.Open(request, &again).ok());
  EXPECT_TRUE(again.existed());
  *request.mutable_resume() = CutElsewhere(opened.partition());
  grpc::Status status = service.Open(request, &again);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), HasSubstr("another partition"));
  request.mutable_resume()->set_num_ranks(77);
  status = service.Open(request, &again);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("resume: partition.num_ranks"));
}

}  // namespace
}  // namespace pipeloom::testing
