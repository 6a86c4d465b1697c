// The service's parts, and calls that need no queue.
#include <arpa/inet.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpc/support/log.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/trace_proto.h"
#include "service/jobs/job_costs.h"
#include "service/jobs/job_request.h"
#include "service/jobs/job_store.h"
#include "service/os/deadline_timer.h"
#include "service/os/log.h"
#include "service/os/metrics.h"
#include "service/os/metrics_server.h"
#include "service/os/state_dir.h"
#include "service/os/thread_priority.h"
#include "service/rpc/library_log.h"
#include "tests/service/service_fixture.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

TEST(JobRequestTest, EveryShippedJobComesBackFromItsMessage) {
  const service::ShippedFiles files = TestOptions().core.files;
  for (const std::string& name : formats::ShippedJobNames()) {
    ASSERT_OK_AND_ASSIGN(JobSpec job, service::ShippedJob(name, files));
    job.module_parallelism = {
        {.module = job.model.modules[ModuleId(0)].name, .tp = 1, .cp = 0}};
    ASSERT_OK_AND_ASSIGN(const JobSpec again,
                         service::JobFromProto(convert::ToProto(job), files));
    EXPECT_EQ(again, job) << name;
  }
}

TEST(JobRequestTest, AFieldIsSetByItsPath) {
  v1::Job job = convert::ToProto(SmallVlmJob());
  EXPECT_THAT(service::SetField("parallel.pp", "8", &job), IsOk());
  EXPECT_EQ(job.parallel().pp(), 8);
  EXPECT_THAT(service::SetField("cluster", "h20", &job), IsOk());
  EXPECT_EQ(job.cluster(), "h20");
  EXPECT_FALSE(job.has_cluster_spec());
  EXPECT_THAT(
      service::SetField("training.batching", "SEQUENCE_BATCHING_PADDED", &job),
      IsOk());
  for (const auto& [path, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"parallel.qq", "8"},
           {"parallel.pp", "many"},
           {"parallel", "8"},
           {"parallel.pp.x", "8"},
           {"training.batching", "FAST"},
           {"training.frozen_modules", "a"},
           {"", ""}}) {
    EXPECT_THAT(service::SetField(path, value, &job),
                FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  }
}

TEST(StateDirTest, AFileIsThereInFullOrAsItWas) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto dir,
                       service::StateDir::Open(folder.path() + "/a/b"));
  const std::string content("x\0y", 3);
  ASSERT_THAT(dir->Write("jobs/j/job", content), IsOk());
  ASSERT_OK_AND_ASSIGN(const std::string read, dir->Read("jobs/j/job"));
  EXPECT_EQ(read, content);
  EXPECT_EQ(dir->Read("jobs/j/none").status().code(),
            absl::StatusCode::kNotFound);
  const std::string path = folder.path() + "/a/b/jobs/j/";
  // The file that a crash leaves while writing.
  std::ofstream(path + ".tmp-7") << "half";
  EXPECT_THAT(dir->List("jobs/j").value(), ::testing::ElementsAre("job"));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp-7"));
  // A byte that changed, then one that is missing.
  for (const size_t cut : {0u, 1u}) {
    ASSERT_THAT(dir->Write("jobs/j/job", content), IsOk());
    if (cut == 0) {
      std::fstream file(path + "job", std::ios::in | std::ios::out);
      file.seekp(-1, std::ios::end);
      file.put('z');
    } else {
      std::filesystem::resize_file(
          path + "job", std::filesystem::file_size(path + "job") - 1);
    }
    EXPECT_EQ(dir->Read("jobs/j/job").status().code(),
              absl::StatusCode::kDataLoss);
  }
  EXPECT_THAT(dir->Remove("jobs/j"), IsOk());
  EXPECT_THAT(dir->List("jobs/j").value(), ::testing::IsEmpty());
}

TEST(StateDirTest, AFolderSetAsideIsGoneAtOnceAndItsNameFree) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto dir, service::StateDir::Open(folder.path()));
  EXPECT_EQ(dir->SetAside("jobs/j").value(), "");
  ASSERT_THAT(dir->Write("jobs/j/plans/1", "old"), IsOk());
  ASSERT_OK_AND_ASSIGN(const std::string first, dir->SetAside("jobs/j"));
  ASSERT_THAT(dir->Write("jobs/j/plans/1", "new"), IsOk());
  EXPECT_THAT(dir->Remove(first), IsOk());
  EXPECT_EQ(dir->Read("jobs/j/plans/1").value_or(""), "new");
  // A crash before it was removed.
  ASSERT_OK_AND_ASSIGN(const std::string second, dir->SetAside("jobs/j"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/" + second));
  EXPECT_THAT(dir->List("jobs").value(), ::testing::IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() + "/jobs"));
}

TEST(DeadlineTimerTest, CallsComeInTheOrderOfTheirTimes) {
  struct {
    Mutex mutex{};
    CondVar changed{};
    std::vector<int> order ABSL_GUARDED_BY(mutex){};
  } called;
  service::DeadlineTimer timer;
  const auto now = service::DeadlineTimer::Clock::now();
  for (const int i : {3, 1, 2, 0}) {
    timer.At(now + std::chrono::milliseconds(10 * i), [&, i] {
      const MutexLock lock(&called.mutex);
      called.order.push_back(i);
      called.changed.NotifyAll();
    });
  }
  const MutexLock lock(&called.mutex);
  const auto all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(called.mutex) {
    return called.order.size() == 4;
  };
  called.changed.WaitFor(&called.mutex, std::chrono::seconds(30), all);
  EXPECT_THAT(called.order, ::testing::ElementsAre(0, 1, 2, 3));
}

TEST(ThreadPriorityTest, SearchesMakeWayForRequestsAndBothForTheRest) {
  const auto niceness = [] {
    return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  };
  const int usual = niceness();
  int search = 0;
  int requests = 0;
  int child = 0;
  std::thread([&] {
    service::MakeWayForServing(service::Background::kRequests);
    requests = niceness();
  }).join();
  std::thread([&] {
    service::MakeWayForServing(service::Background::kSearch);
    search = niceness();
    std::thread([&] { child = niceness(); }).join();
  }).join();
  EXPECT_EQ(requests, std::min(19, usual + 5));
  EXPECT_EQ(search, std::min(19, usual + 10));
  EXPECT_EQ(child, search) << "threads that a search starts";
  EXPECT_EQ(niceness(), usual) << "a thread of its own only";
}

TEST(LogTest, LinesAreJsonAndLevelsCount) {
  std::string lines;
  service::Log log(service::LogLevel::kInfo, [&](absl::string_view line) {
    absl::StrAppend(&lines, line);
  });
  log.Write(service::LogLevel::kDebug, "not this");
  log.Write(service::LogLevel::kWarning, "odd",
            {{"text", "a \"b\"\n\xff"}, {"number", int64_t{7}}});
  EXPECT_THAT(lines, HasSubstr("\"level\": \"warning\", \"event\": \"odd\", "
                               "\"text\": \"a \\\"b\\\"\\u000a\\u00ff\", "
                               "\"number\": 7}\n"));
  EXPECT_THAT(lines, ::testing::Not(HasSubstr("not this")));
}

TEST(LearnedOfTest, StoredFactorsComeBackAlsoFromOlderStates) {
  const ModelSpec model = SmallVlmJob().model;
  ASSERT_EQ(model.modules.size(), 2);
  const std::string& first = model.modules[ModuleId(0)].name;
  const std::string& second = model.modules[ModuleId(1)].name;
  v1::StoredJob stored;
  EXPECT_TRUE(service::LearnedOf(stored, model)->empty());
  // As they were stored before there was a learner.
  for (const double factor : {2.0, 1.0}) {
    v1::StoredCorrection& c = *stored.add_corrections();
    c.set_forward(factor);
    c.set_backward(factor / 4);
    c.set_weight_grad(1);
    c.set_forward_tasks(100);
    c.set_backward_tasks(10);
  }
  ASSERT_OK_AND_ASSIGN(const emulator::CostLearner old,
                       service::LearnedOf(stored, model));
  EXPECT_EQ(old.Factor(first, Pass::kForward), 2);
  EXPECT_EQ(old.Factor(first, Pass::kBackward), 0.5);
  EXPECT_EQ(old.Factor(second, Pass::kBackward), 0.25);
  EXPECT_EQ(old.Tasks(first, Pass::kForward), 100);
  EXPECT_EQ(old.Tasks(first, Pass::kWeightGrad), 0);
  stored.set_learned(old.ToString());
  stored.clear_corrections();
  ASSERT_OK_AND_ASSIGN(const emulator::CostLearner again,
                       service::LearnedOf(stored, model));
  EXPECT_EQ(again, old);
  stored.set_learned("pipeloom learned costs version 9");
  EXPECT_THAT(
      service::LearnedOf(stored, model),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("line 1")));
}

TEST(CallsTest, MeasuredTracesCorrectLaterStepsAndNotEarlierOnes) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  v1::RankPlan before;
  ASSERT_TRUE(service.Get(job, 0, 0, 0, &before).ok());
  grpc::ClientContext context;
  service.Prepare(&context, std::chrono::seconds(30));
  v1::ReportTraceRequest report;
  report.set_job_id(job);
  *report.mutable_plan_checksum() = before.plan_checksum();
  report.mutable_trace()->set_version(1);
  report.mutable_trace()->set_num_ranks(before.num_ranks());
  int64_t time = 0;
  for (const v1::IndexedTask& t : before.tasks()) {
    v1::Span& span = *report.mutable_trace()->add_spans();
    span.set_stream(v1::STREAM_COMPUTE);
    span.set_kind(v1::SPAN_KIND_TASK);
    span.set_task(t.index());
    span.set_start_ns(time);
    span.set_end_ns(time += 3 * t.task().duration_ns());
  }
  report.mutable_trace()->set_finish_ns(time);
  v1::ReportTraceResponse response;
  const grpc::Status status =
      service.stub().ReportTrace(&context, report, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_NEAR(response.mean_task_time_error(), 2, 0.01);
  ASSERT_GT(response.corrections_size(), 0);
  EXPECT_NEAR(response.corrections(0).factor(), 3, 0.01);
  // The same batch: planned with dearer tasks in another step.
  ASSERT_TRUE(service.Submit(SmallBatch(job, 1, 5)).ok());
  v1::RankPlan after;
  ASSERT_TRUE(service.Get(job, 1, 0, 0, &after).ok());
  // A part of the step is transfers and updates.
  EXPECT_GT(2 * after.predicted_step_time_ns(),
            3 * before.predicted_step_time_ns());
  EXPECT_FALSE(MessageDifferencer::Equals(after.step_checksum(),
                                          before.step_checksum()));
  v1::RankPlan still;
  ASSERT_TRUE(service.Get(job, 0, 0, 0, &still).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(still, before));
}

TEST(CallsTest, ASlowRankMakesTheStepLonger) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  const auto emulate = [&](v1::EmulateRequest request,
                           v1::EmulateResponse* response) {
    request.mutable_key()->set_job_id(job);
    grpc::ClientContext context;
    service.Prepare(&context, std::chrono::seconds(30));
    return service.stub().Emulate(&context, request, response);
  };
  v1::EmulateRequest request;
  request.set_with_trace(true);
  v1::EmulateResponse plain;
  ASSERT_TRUE(emulate(request, &plain).ok());
  v1::GetPlanResponse whole;
  ASSERT_TRUE(service.GetWhole(job, 0, 0, &whole).ok());
  EXPECT_EQ(plain.figures().step_time_ns(),
            whole.plan().predicted_step_time_ns());
  EXPECT_EQ(plain.trace().finish_ns(), plain.figures().step_time_ns());
  EXPECT_EQ(plain.figures().peak_bytes_size(), 4);
  v1::TaskScale* scale = request.add_scales();
  scale->set_rank(2);
  scale->set_factor(5);
  v1::EmulateResponse slow;
  ASSERT_TRUE(emulate(request, &slow).ok());
  EXPECT_GT(slow.figures().step_time_ns(), plain.figures().step_time_ns());
  for (const double factor : {0.0, -1.0, 1e9}) {
    scale->set_factor(factor);
    const grpc::Status status = emulate(request, &slow);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("scales[0].factor"));
  }
}

TEST(CallsTest, WhatIfComparesVariantsAndSaysWhichCannotBe) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  v1::WhatIfRequest request;
  request.set_job_id(job);
  request.set_evaluations(50);
  *request.mutable_batch() = SmallBatch(job, 0, 5).batch();
  request.add_variants()->set_name("as it is");
  for (const auto& [path, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"parallel.pp", "2"},
           {"parallel.pp", "-1"},
           {"model", "/x"},
           {"parallel.pp", "0"},
           {"training.microbatches", "2"}}) {
    v1::JobChange* change = request.add_variants()->add_changes();
    change->set_path(path);
    change->set_value(value);
  }
  grpc::ClientContext context;
  service.Prepare(&context, std::chrono::seconds(60));
  v1::WhatIfResponse response;
  const grpc::Status status =
      service.stub().WhatIf(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.rows_size(), 6);
  EXPECT_EQ(response.rows(0).error(), "");
  EXPECT_EQ(response.rows(0).figures().peak_bytes_size(), 4);
  EXPECT_EQ(response.rows(1).error(), "");
  EXPECT_EQ(response.rows(1).figures().peak_bytes_size(), 2);
  EXPECT_GT(response.rows(1).figures().step_time_ns(),
            response.rows(0).figures().step_time_ns());
  EXPECT_NE(response.rows(2).error(), "");
  EXPECT_NE(response.rows(3).error(), "");
  EXPECT_EQ(response.rows(4).error(),
            "parallel.pp is 0; it must be at least 1");
  // The samples alone say how many microbatches the step has.
  EXPECT_THAT(response.rows(5).error(),
              HasSubstr("training.microbatches is 2; a step here has as many "
                        "microbatches as its samples fill"));
}

TEST(CallsTest, WatchTellsOfEveryPlanOfItsJob) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  const std::string other = service.OpenSmallJob(1);
  grpc::ClientContext context;
  service.Prepare(&context, std::chrono::seconds(60));
  v1::WatchRequest request;
  request.set_job_id(job);
  const auto watch = service.stub().Watch(&context, request);
  watch->WaitForInitialMetadata();
  ASSERT_TRUE(service.Submit(SmallBatch(other, 0, 5)).ok());
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(service.Submit(SmallBatch(job, step, 5)).ok());
  }
  for (int i = 0; i < 6; ++i) {
    v1::PlanStatistics statistics;
    ASSERT_TRUE(watch->Read(&statistics));
    EXPECT_EQ(statistics.job_id(), job);
    EXPECT_EQ(statistics.error(), "");
    EXPECT_GT(statistics.step_time_ns(), 0);
    EXPECT_GE(statistics.latency_ns(), statistics.search_ns());
  }
  context.TryCancel();
}

TEST(CallsTest, ManyBatchesGoOverOneStream) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  grpc::ClientContext context;
  service.Prepare(&context, std::chrono::seconds(60));
  v1::SubmitBatchesResponse response;
  const auto stream = service.stub().SubmitBatches(&context, &response);
  for (const int64_t step : {0, 1, 1, 2}) {
    ASSERT_TRUE(stream->Write(SmallBatch(job, step, 5)));
  }
  stream->WritesDone();
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.accepted(), 3);
  EXPECT_EQ(response.existed(), 1);

  grpc::ClientContext second;
  service.Prepare(&second, std::chrono::seconds(60));
  const auto broken = service.stub().SubmitBatches(&second, &response);
  broken->Write(SmallBatch(job, 3, 5));
  broken->Write(SmallBatch(job, -3, 5));
  broken->WritesDone();
  const grpc::Status status = broken->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("submission 1: step"));
  v1::RankPlan share;
  EXPECT_TRUE(service.Get(job, 3, 0, 0, &share).ok());
}

TEST(CallsTest, ClosingAJobEndsItsWaits) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  grpc::Status status;
  {
    std::jthread waiter([&] {
      v1::RankPlan share;
      status = service.Get(job, 0, 0, 0, &share);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    grpc::ClientContext context;
    v1::CloseJobRequest request;
    request.set_job_id(job);
    v1::CloseJobResponse response;
    EXPECT_TRUE(service.stub().CloseJob(&context, request, &response).ok());
    EXPECT_TRUE(response.existed());
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

// The answer of a server to one request in plain text.
std::string AskPort(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  return answer;
}

TEST(CallsTest, MetricsCountWhatHappens) {
  service::ServerOptions options = TestOptions();
  options.metrics_port = 0;
  TestService service(std::move(options));
  const std::string job = service.OpenSmallJob();
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  v1::RankPlan share;
  for (int32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(service.Get(job, 0, r, 0, &share).ok());
  }
  const std::string text =
      AskPort(service.server().metrics_port(), "GET /metrics HTTP/1.0\r\n\r\n");
  EXPECT_THAT(text, ::testing::StartsWith("HTTP/1.0 200 OK\r\n"));
  for (const char* line :
       {"\npipeloom_plans_total 2\n", "\npipeloom_jobs 1\n",
        "\npipeloom_plans_refused_total 0\n",
        "\npipeloom_plan_latency_seconds_count 2\n",
        "\npipeloom_calls_total{method=\"SubmitBatch\",status=\"OK\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(
      AskPort(service.server().metrics_port(), "GET /secret HTTP/1.0\r\n\r\n"),
      ::testing::StartsWith("HTTP/1.0 404"));
}

// A caller that reads a byte at a time, for as long as it likes.
TEST(MetricsServerTest, ASlowReaderDelaysNeitherOthersNorTheEnd) {
  const std::string text(int64_t{8} << 20, 'm');
  ASSERT_OK_AND_ASSIGN(
      std::unique_ptr<service::MetricsServer> server,
      service::MetricsServer::Start("127.0.0.1", 0, [&] { return text; }));
  std::atomic<bool> answered = false;
  std::vector<int> slow;
  for (int i = 0; i < 3; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(
        connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    // The last one does not even finish to ask.
    send(fd, request.data(), i < 2 ? request.size() : 5, MSG_NOSIGNAL);
    slow.push_back(fd);
  }
  std::jthread reader([&] {
    char byte[1];
    for (int i = 0; i < 600 && !answered; ++i) {
      recv(slow[0], byte, 1, MSG_DONTWAIT);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  const std::string answer =
      AskPort(server->port(), "GET /metrics HTTP/1.0\r\n\r\n");
  EXPECT_GT(answer.size(), text.size());
  answered = true;
  server.reset();
  for (const int fd : slow) close(fd);
}

TEST(MetricsServerTest, TheAddressIsChosenAndChecked) {
  const auto none = [] { return std::string(); };
  EXPECT_THAT(service::MetricsServer::Start("here", 0, none),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("here")));
  ASSERT_OK_AND_ASSIGN(const auto server,
                       service::MetricsServer::Start("0.0.0.0", 0, none));
  EXPECT_GT(server->port(), 0);
}

TEST(LibraryLogTest, WhatCallersSentForgesNoLine) {
  std::string lines;
  service::Log log(service::LogLevel::kInfo, [&](absl::string_view line) {
    lines.append(line.data(), line.size());
  });
  {
    const service::LibraryLog library(&log);
    gpr_log(GPR_ERROR, "bad header: %s",
            "x\n{\"level\": \"info\", \"event\": \"job_closed\"}");
    for (int i = 0; i < 1000; ++i) gpr_log(GPR_ERROR, "again");
  }
  EXPECT_THAT(lines, HasSubstr("\"event\": \"grpc\""));
  EXPECT_THAT(lines, HasSubstr("x\\u000a{"));
  EXPECT_THAT(lines, ::testing::Not(HasSubstr("\n{\"level\"")));
  const auto count = std::count(lines.begin(), lines.end(), '\n');
  EXPECT_LE(count, 40) << "callers can fill the log";
}

}  // namespace
}  // namespace pipeloom::testing
