#include "cli/run/follow.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "cli/run/plan_follower.h"
#include "pipeloom/v1/planner_service.grpc.pb.h"

namespace pipeloom::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kSocket = STDIN_FILENO;
constexpr milliseconds kShortestPause{50};
constexpr milliseconds kLongestPause{1000};
constexpr std::chrono::seconds kCall{5};
constexpr std::chrono::seconds kPlan{60};

bool ParseJobFrame(const std::string& payload, v1::OpenJobRequest* request) {
  std::istringstream in(payload);
  v1::Partition& partition = *request->mutable_partition();
  int32_t ranks = 0;
  int32_t segments = 0;
  size_t stages = 0;
  size_t sizes = 0;
  in >> ranks >> segments >> stages >> sizes;
  partition.set_num_ranks(ranks);
  partition.set_num_segments(segments);
  std::string module;
  for (size_t i = 0; i < stages; ++i) {
    int32_t first = 0;
    int32_t layers = 0;
    int32_t rank = 0;
    int32_t segment = 0;
    in >> module >> first >> layers >> rank >> segment;
    v1::PartitionStage& stage = *partition.add_stages();
    stage.set_module(module);
    stage.set_first_layer(first);
    stage.set_num_layers(layers);
    stage.set_rank(rank);
    stage.set_segment(segment);
  }
  for (size_t i = 0; i < sizes; ++i) {
    int64_t instances = 0;
    in >> module >> instances;
    if (instances == 0) continue;
    v1::SubMicrobatchSize& size = *partition.add_sub_microbatch_sizes();
    size.set_module(module);
    size.set_instances(instances);
  }
  in.get();  // The end of the last line.
  if (!in) return false;
  return request->mutable_job()->ParseFromString(
      payload.substr(static_cast<size_t>(in.tellg())));
}

bool ParseBatchFrame(const std::string& payload,
                     v1::SubmitBatchRequest* request) {
  const size_t end = payload.find('\n');
  if (end == std::string::npos) return false;
  std::istringstream in(payload.substr(0, end));
  for (int32_t m = 0; in >> m;) request->add_microbatch_of(m);
  return request->mutable_batch()->ParseFromString(payload.substr(end + 1));
}

class Follower {
 public:
  explicit Follower(const FollowSettings& settings) : settings_(settings) {}

  absl::Status Run() {
    Connect();
    std::thread caller([this] { Call(); });
    char kind = 0;
    int64_t step = 0;
    std::string payload;
    bool ok = true;
    while (ok && ReadFrame(kSocket, &kind, &step, &payload)) {
      const MutexLock lock(&mutex_);
      if (kind == 'J') {
        ok = ParseJobFrame(payload, &job_);
        // The run has made the microbatches; balancing would need samples.
        job_.mutable_job()->mutable_training()->set_assignment(
            v1::SAMPLE_ASSIGNMENT_IN_ORDER);
        // The id is unique to this run, as another run has other steps.
        job_.set_job_id(absl::StrCat("run-", getpid(), "-",
                                     Clock::now().time_since_epoch().count()));
      } else if (kind == 'S') {
        v1::SubmitBatchRequest& batch = steps_[step];
        batch.set_job_id(job_.job_id());
        batch.set_step(step);
        batch.set_replica(0);
        ok = ParseBatchFrame(payload, &batch);
      } else if (kind == 'F') {
        steps_.erase(steps_.begin(), steps_.upper_bound(step));
        if (asked_ <= step && context_ != nullptr) context_->TryCancel();
      }
      changed_.NotifyAll();
    }
    {
      const MutexLock lock(&mutex_);
      over_ = true;
      if (context_ != nullptr) context_->TryCancel();
      changed_.NotifyAll();
    }
    caller.join();
    if (opened_) {
      v1::CloseJobRequest request;
      request.set_job_id(OpenRequest().job_id());
      v1::CloseJobResponse response;
      grpc::ClientContext context;
      Prepare(&context, kCall);
      stub_->CloseJob(&context, request, &response);
    }
    return ok ? absl::OkStatus()
              : absl::InvalidArgumentError("a frame makes no sense");
  }

 private:
  void Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    std::shared_ptr<grpc::ChannelCredentials> credentials =
        grpc::InsecureChannelCredentials();
    if (!settings_.tls_roots.empty()) {
      grpc::SslCredentialsOptions tls;
      tls.pem_root_certs = settings_.tls_roots;
      credentials = grpc::SslCredentials(tls);
    }
    stub_ = v1::PlannerService::NewStub(
        grpc::CreateCustomChannel(settings_.target, credentials, arguments));
  }

  void Prepare(grpc::ClientContext* context, milliseconds time) const {
    context->set_deadline(std::chrono::system_clock::now() + time);
    if (!settings_.token.empty()) {
      context->AddMetadata("authorization",
                           absl::StrCat("Bearer ", settings_.token));
    }
  }

  // Makes a call that can be cancelled when its answer is not wanted any more.
  template <typename Calls>
  grpc::Status Make(int64_t step, milliseconds time, const Calls& call) {
    grpc::ClientContext context;
    Prepare(&context, time);
    {
      const MutexLock lock(&mutex_);
      if (over_) return {grpc::StatusCode::CANCELLED, "over"};
      context_ = &context;
      asked_ = step;
    }
    const grpc::Status status = call(&context);
    const MutexLock lock(&mutex_);
    context_ = nullptr;
    return status;
  }

  void Call() {
    MutexLock lock(&mutex_);
    while (true) {
      changed_.Wait(&mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return over_ || NextStep().has_value();
      });
      if (over_) return;
      const int64_t step = *NextStep();
      done_.erase(done_.begin(), done_.lower_bound(steps_.begin()->first));
      lock.Unlock();
      const grpc::Status status = Follow(step);
      lock.Lock();
      if (over_ || !steps_.contains(step)) continue;  // Cancelled.
      Settle(step, status);
    }
  }

  // Returns the first step that has no answer yet.
  std::optional<int64_t> NextStep() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [step, batch] : steps_) {
      if (!done_.contains(step)) return step;
    }
    return std::nullopt;
  }

  // Returns the job as it came last.
  v1::OpenJobRequest OpenRequest() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(&mutex_);
    return job_;
  }

  // Opens the job and submits batches if that is not done yet; then waits for
  // the step's plan and hands it over.
  grpc::Status Follow(int64_t step) {
    constexpr int64_t kNever = INT64_MAX;
    const v1::OpenJobRequest job = OpenRequest();
    if (!opened_) {
      v1::OpenJobResponse opened;
      const grpc::Status status =
          Make(kNever, 4 * kCall, [&](grpc::ClientContext* context) {
            return stub_->OpenJob(context, job, &opened);
          });
      if (!status.ok()) return status;
      opened_ = true;
      submitted_.clear();
    }
    std::map<int64_t, v1::SubmitBatchRequest> steps;
    {
      const MutexLock lock(&mutex_);
      steps = steps_;
    }
    for (const auto& [number, batch] : steps) {
      if (number < step || submitted_.contains(number)) continue;
      v1::SubmitBatchResponse response;
      const grpc::Status status =
          Make(kNever, kCall, [&](grpc::ClientContext* context) {
            return stub_->SubmitBatch(context, batch, &response);
          });
      if (!status.ok()) return status;
      submitted_.insert(number);
    }
    v1::GetPlanRequest request;
    request.set_job_id(job.job_id());
    request.set_step(step);
    v1::GetPlanResponse response;
    const grpc::Status status =
        Make(step, kPlan, [&](grpc::ClientContext* context) {
          return stub_->GetPlan(context, request, &response);
        });
    if (status.ok()) {
      WriteFrame(kSocket, 'P', step, response.plan().SerializeAsString());
    }
    return status;
  }

  void Settle(int64_t step, const grpc::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status.ok()) {
      done_.insert(step);
      pause_ = kShortestPause;
      if (std::exchange(troubled_, false)) {
        std::fputs(absl::StrFormat("pipeloom run: the planner at %s answers "
                                   "again\n",
                                   settings_.target)
                       .c_str(),
                   stderr);
      }
      return;
    }
    if (!std::exchange(troubled_, true)) {
      std::fputs(
          absl::StrFormat("pipeloom run: the planner at %s: %s; the run goes "
                          "on, and asks again\n",
                          settings_.target, status.error_message())
              .c_str(),
          stderr);
    }
    WriteFrame(kSocket, 'T', step, "");
    switch (status.error_code()) {
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::FAILED_PRECONDITION:
      case grpc::StatusCode::ALREADY_EXISTS:
        if (opened_) done_.insert(step);  // A retry would change nothing.
        break;
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        Connect();
        opened_ = false;
        break;
      default:
        opened_ = false;  // The next planner may not know the job.
    }
    changed_.WaitFor(
        &mutex_, pause_,
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_; });
    pause_ = std::min(2 * pause_, kLongestPause);
  }

  const FollowSettings settings_;
  std::unique_ptr<v1::PlannerService::Stub> stub_{};
  Mutex mutex_{};
  CondVar changed_{};
  v1::OpenJobRequest job_ ABSL_GUARDED_BY(mutex_){};
  std::map<int64_t, v1::SubmitBatchRequest> steps_ ABSL_GUARDED_BY(mutex_){};
  // The call under way, or null, and its step.
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  // Used by the calling thread only.
  std::set<int64_t> done_{};
  std::set<int64_t> submitted_{};
  bool opened_ = false;
  bool troubled_ = false;
  milliseconds pause_ = kShortestPause;
};

}  // namespace

absl::Status RunFollow(const FollowSettings& settings) {
  return Follower(settings).Run();
}

}  // namespace pipeloom::cli
