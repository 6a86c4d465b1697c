#include "service/grpc_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/convert/plan_proto.h"
#include "service/core_errors.h"
#include "service/thread_priority.h"
#include "service/what_if.h"

namespace pipeloom::service {
namespace {

using Clock = PlannerCore::Clock;

constexpr int32_t kPoolThreads = 4;
constexpr int32_t kPoolWaiting = 4096;
constexpr int32_t kOpeningThreads = 2;
constexpr std::chrono::seconds kMostWait{60};
constexpr std::chrono::hours kMostOpening{1};
constexpr size_t kMostMessage = 1024;  // Of an error; it goes in a header.
constexpr size_t kMostUnwatched = 1024;

// The codes have the same numbers.
grpc::Status ToGrpc(const absl::Status& status) {
  std::string message(status.message().substr(0, kMostMessage));
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::move(message));
}

void AddHint(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (const auto hint = status.GetPayload(kRetryAfter)) {
    context->AddTrailingMetadata(kRetryAfter, std::string(*hint));
  }
}

// The caller's deadline on the steady clock; the wall clock may jump later.
Clock::time_point DeadlineOf(const grpc::CallbackServerContext& context,
                             std::chrono::seconds most = kMostWait) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return Clock::now() +
         std::clamp<std::chrono::nanoseconds>(
             std::chrono::duration_cast<std::chrono::nanoseconds>(left),
             std::chrono::nanoseconds(0), most);
}

// Takes as long wherever they differ.
bool SameSecret(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  }
  return difference == 0;
}

}  // namespace

// One call with one answer. It deletes itself when gRPC is done with it, which
// may be as soon as Finish was called; what outlives that is in State.
class GrpcService::UnaryCall : public grpc::ServerUnaryReactor {
 public:
  struct State {
    std::mutex mutex{};
    bool finished = false;
    bool cancelled = false;
    int64_t wait = 0;  // Id of Await; 0: none.
    std::stop_source stop{};
  };

  UnaryCall(grpc::CallbackServerContext* context, const char* method,
            PlannerCore* core, Metrics* metrics)
      : context_(context), method_(method), core_(core), metrics_(metrics) {}

  const std::shared_ptr<State>& state() const { return state_; }

  // Once; the call may be gone afterwards.
  void End(const absl::Status& status) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->finished = true;
    }
    metrics_->CountCall(method_, absl::StatusCodeToString(status.code()));
    AddHint(status, context_);
    Finish(ToGrpc(status));
  }

  void OnCancel() override {
    int64_t wait = 0;
    {
      const std::lock_guard lock(state_->mutex);
      state_->cancelled = true;
      if (state_->finished) return;
      wait = state_->wait;
    }
    state_->stop.request_stop();
    if (wait != 0 && core_->CancelAwait(wait)) {
      End(absl::CancelledError("the caller left"));
    }
  }

  void OnDone() override { delete this; }

 private:
  grpc::CallbackServerContext* context_;
  const char* method_;
  PlannerCore* core_;
  Metrics* metrics_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

GrpcService::GrpcService(PlannerCore* core, Metrics* metrics, std::string token)
    : core_(core),
      metrics_(metrics),
      token_(std::move(token)),
      answers_(1, std::numeric_limits<int32_t>::max()),
      pool_(kPoolThreads, kPoolWaiting,
            [] { MakeWayForServing(Background::kRequests); }),
      opening_(kOpeningThreads, kPoolWaiting,
               [] { MakeWayForServing(Background::kSearch); }) {}

absl::Status GrpcService::Authorize(
    const grpc::CallbackServerContext& context) const {
  if (token_.empty()) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found != metadata.end() &&
      SameSecret(absl::string_view(found->second.data(), found->second.size()),
                 absl::StrCat("Bearer ", token_))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      "metadata \"authorization\" must be \"Bearer \" and the service's token");
}

GrpcService::UnaryCall* GrpcService::OnPool(
    grpc::CallbackServerContext* context, const char* method,
    std::function<absl::Status(std::stop_token)> work) {
  auto* call = new UnaryCall(context, method, core_, metrics_);
  if (const absl::Status allowed = Authorize(*context); !allowed.ok()) {
    call->End(allowed);
    return call;
  }
  EndOnPool(call, std::move(work));
  return call;
}

void GrpcService::EndOnPool(UnaryCall* call,
                            std::function<absl::Status(std::stop_token)> work) {
  const bool posted = pool_.Post([this, call, work = std::move(work)] {
    const std::stop_token stop = call->state()->stop.get_token();
    const absl::Status status = stop.stop_requested()
                                    ? absl::CancelledError("the caller left")
                                    : work(stop);
    answers_.Post([call, status] { call->End(status); });
  });
  if (!posted) call->End(Busy("too many calls wait", 200));
}

GrpcService::UnaryCall* GrpcService::Refuse(
    grpc::CallbackServerContext* context, const char* method,
    const absl::Status& status) {
  auto* call = new UnaryCall(context, method, core_, metrics_);
  const absl::Status allowed = Authorize(*context);
  call->End(allowed.ok() ? status : allowed);
  return call;
}

GrpcService::UnaryCall* GrpcService::OnPlan(
    grpc::CallbackServerContext* context, const char* method,
    const planner::PlanKey& key, int32_t rank, bool long_use,
    std::function<absl::Status(const std::shared_ptr<const ReadyPlan>&)> use) {
  auto* call = new UnaryCall(context, method, core_, metrics_);
  if (const absl::Status allowed = Authorize(*context); !allowed.ok()) {
    call->End(allowed);
    return call;
  }
  const std::shared_ptr<UnaryCall::State> state = call->state();
  const int64_t wait = core_->Await(
      key, rank, DeadlineOf(*context),
      [=, this, use = std::move(use)](const PlanOrError& plan) {
        if (!plan.ok()) {
          call->End(plan.status());
        } else if (long_use) {
          EndOnPool(call, [use, ready = *plan](const std::stop_token&) {
            return use(ready);
          });
        } else {
          call->End(use(*plan));
        }
      });
  if (wait == 0) return call;
  bool cancelled = false;
  {
    const std::lock_guard lock(state->mutex);
    state->wait = wait;
    cancelled = state->cancelled && !state->finished;
  }
  // The caller left before it was known what to cancel.
  if (cancelled && core_->CancelAwait(wait)) {
    call->End(absl::CancelledError("the caller left"));
  }
  return call;
}

namespace {

// InvalidArgument: the bytes are no such message.
template <typename Message>
absl::StatusOr<Message> Read(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  Message message;
  const bool whole =
      bytes.TrySingleSlice(&slice).ok() || bytes.DumpToSingleSlice(&slice).ok();
  if (whole &&
      message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return message;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the request is no ", message.GetDescriptor()->name()));
}

// Bytes of a plan, which lives as long as they do.
grpc::Slice Keep(const std::shared_ptr<const ReadyPlan>& plan,
                 const std::string& bytes) {
  using Kept = std::shared_ptr<const ReadyPlan>;
  return grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* kept) { delete static_cast<Kept*>(kept); }, new Kept(plan));
}

// Moves a result to the response.
template <typename Response>
absl::Status Take(absl::StatusOr<Response> result, Response* response) {
  if (!result.ok()) return result.status();
  *response = *std::move(result);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* GrpcService::OpenJob(
    grpc::CallbackServerContext* context, const v1::OpenJobRequest* request,
    v1::OpenJobResponse* response) {
  if (const absl::Status allowed = Authorize(*context); !allowed.ok()) {
    return Refuse(context, "OpenJob", allowed);
  }
  auto* call = new UnaryCall(context, "OpenJob", core_, metrics_);
  Open(call, request, DeadlineOf(*context, kMostOpening), response);
  return call;
}

void GrpcService::Open(UnaryCall* call, const v1::OpenJobRequest* request,
                       Clock::time_point deadline,
                       v1::OpenJobResponse* response) {
  const bool posted = opening_.Post([=, this] {
    const absl::StatusOr<v1::OpenJobResponse> opened =
        core_->OpenJob(*request, deadline, call->state()->stop.get_token(),
                       [=, this] { Open(call, request, deadline, response); });
    if (absl::IsAborted(opened.status())) return;
    answers_.Post([=] { call->End(Take(opened, response)); });
  });
  if (!posted) call->End(Busy("too many calls wait", 200));
}

grpc::ServerUnaryReactor* GrpcService::SubmitBatch(
    grpc::CallbackServerContext* context, const v1::SubmitBatchRequest* request,
    v1::SubmitBatchResponse* response) {
  return OnPool(context, "SubmitBatch", [=, this](const std::stop_token&) {
    return Take(core_->Submit(*request), response);
  });
}

grpc::ServerUnaryReactor* GrpcService::GetRankPlan(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* response) {
  const Clock::time_point begin = Clock::now();
  absl::StatusOr<v1::GetRankPlanRequest> request =
      Read<v1::GetRankPlanRequest>(*bytes);
  if (request.ok() && request->rank() < 0) {
    request = absl::InvalidArgumentError(
        absl::StrFormat("rank is %d; it must be >= 0", request->rank()));
  }
  if (!request.ok()) return Refuse(context, "GetRankPlan", request.status());
  return OnPlan(context, "GetRankPlan",
                {request->job_id(), request->step(), request->replica()},
                request->rank(),
                /*long_use=*/false,
                [this, response, begin, rank = RankId(request->rank())](
                    const std::shared_ptr<const ReadyPlan>& plan) {
                  const grpc::Slice parts[] = {Keep(plan, plan->shares[rank]),
                                               Keep(plan, plan->common_share)};
                  *response = grpc::ByteBuffer(parts, 2);
                  metrics_->share.Add(
                      std::chrono::nanoseconds(Clock::now() - begin).count());
                  return absl::OkStatus();
                });
}

grpc::ServerUnaryReactor* GrpcService::GetPlan(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
    grpc::ByteBuffer* response) {
  const absl::StatusOr<v1::GetPlanRequest> request =
      Read<v1::GetPlanRequest>(*bytes);
  if (!request.ok()) return Refuse(context, "GetPlan", request.status());
  return OnPlan(context, "GetPlan",
                {request->job_id(), request->step(), request->replica()}, -1,
                /*long_use=*/true,
                [=](const std::shared_ptr<const ReadyPlan>& plan) {
                  const grpc::Slice whole(WholePlan(*plan).SerializeAsString());
                  *response = grpc::ByteBuffer(&whole, 1);
                  return absl::OkStatus();
                });
}

grpc::ServerUnaryReactor* GrpcService::ReportTrace(
    grpc::CallbackServerContext* context, const v1::ReportTraceRequest* request,
    v1::ReportTraceResponse* response) {
  return OnPool(context, "ReportTrace", [=, this](const std::stop_token&) {
    return Take(core_->Report(*request), response);
  });
}

grpc::ServerUnaryReactor* GrpcService::Emulate(
    grpc::CallbackServerContext* context, const v1::EmulateRequest* request,
    v1::EmulateResponse* response) {
  if (request->has_key()) {
    const v1::GetPlanRequest& key = request->key();
    return OnPlan(context, "Emulate", {key.job_id(), key.step(), key.replica()},
                  -1, /*long_use=*/true,
                  [=](const std::shared_ptr<const ReadyPlan>& plan) {
                    return Take(EmulatePlan(plan->plan, *request), response);
                  });
  }
  return OnPool(context, "Emulate", [=](const std::stop_token&) {
    if (!request->has_plan()) {
      return absl::InvalidArgumentError(
          "source is not set; it must be `key` or `plan`");
    }
    const auto plan = convert::FromProto(request->plan());
    if (!plan.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan.", plan.status().message()));
    }
    if (const absl::Status valid = ValidateExecutionPlan(*plan); !valid.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: ", valid.message()));
    }
    return Take(EmulatePlan(*plan, *request), response);
  });
}

grpc::ServerUnaryReactor* GrpcService::WhatIf(
    grpc::CallbackServerContext* context, const v1::WhatIfRequest* request,
    v1::WhatIfResponse* response) {
  return OnPool(context, "WhatIf", [=, this](const std::stop_token& stop) {
    return Take(core_->WhatIf(*request, stop), response);
  });
}

grpc::ServerUnaryReactor* GrpcService::CloseJob(
    grpc::CallbackServerContext* context, const v1::CloseJobRequest* request,
    v1::CloseJobResponse* response) {
  return OnPool(context, "CloseJob", [=, this](const std::stop_token&) {
    *response = core_->Close(request->job_id());
    return absl::OkStatus();
  });
}

// Reads a batch, submits it on the pool, reads the next.
class GrpcService::SubmitStream
    : public grpc::ServerReadReactor<v1::SubmitBatchRequest> {
 public:
  SubmitStream(GrpcService* service, grpc::CallbackServerContext* context,
               v1::SubmitBatchesResponse* response)
      : service_(service), context_(context), response_(response) {
    if (const absl::Status allowed = service->Authorize(*context);
        !allowed.ok()) {
      End(allowed);
    } else {
      StartRead(&request_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // The caller has sent all, or has left.
      End(absl::OkStatus());
      return;
    }
    if (!service_->pool_.Post([this] { Submit(); })) {
      End(Busy("too many calls wait", 200));
    }
  }

  void OnDone() override { delete this; }

 private:
  void Submit() {
    const auto result = service_->core_->Submit(request_);
    if (!result.ok()) {
      absl::Status status(
          result.status().code(),
          absl::StrCat("submission ", index_, ": ", result.status().message()));
      if (const auto hint = result.status().GetPayload(kRetryAfter)) {
        status.SetPayload(kRetryAfter, *hint);
      }
      End(status);
      return;
    }
    ++index_;
    if (result->existed()) {
      response_->set_existed(response_->existed() + 1);
    } else {
      response_->set_accepted(response_->accepted() + 1);
    }
    response_->set_queued(result->queued());
    StartRead(&request_);
  }
  void End(const absl::Status& status) {
    service_->metrics_->CountCall("SubmitBatches",
                                  absl::StatusCodeToString(status.code()));
    AddHint(status, context_);
    Finish(ToGrpc(status));
  }

  GrpcService* service_;
  grpc::CallbackServerContext* context_;
  v1::SubmitBatchesResponse* response_;
  v1::SubmitBatchRequest request_{};
  int64_t index_ = 0;
};

grpc::ServerReadReactor<v1::SubmitBatchRequest>* GrpcService::SubmitBatches(
    grpc::CallbackServerContext* context, v1::SubmitBatchesResponse* response) {
  return new SubmitStream(this, context, response);
}

// Writes what the core tells of, one message at a time.
class GrpcService::WatchStream
    : public grpc::ServerWriteReactor<v1::PlanStatistics> {
 public:
  WatchStream(GrpcService* service, grpc::CallbackServerContext* context,
              std::string job_id)
      : state_(std::make_shared<State>()), service_(service) {
    if (const absl::Status allowed = service->Authorize(*context);
        !allowed.ok()) {
      Finish(ToGrpc(allowed));
      return;
    }
    state_->stream = this;
    // Headers now, so that a caller knows that it watches.
    StartSendInitialMetadata();
    state_->subscription =
        service->core_->Subscribe([state = state_, job_id = std::move(job_id)](
                                      const v1::PlanStatistics& statistics) {
          if (!job_id.empty() && statistics.job_id() != job_id) return;
          const std::lock_guard lock(state->mutex);
          if (state->stream == nullptr) return;
          if (state->waiting.size() >= kMostUnwatched) {
            state->waiting.pop_front();
          }
          state->waiting.push_back(statistics);
          state->stream->WriteNext();
        });
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(state_->mutex);
    writing_ = false;
    if (ok && state_->stream != nullptr) WriteNext();
  }

  void OnCancel() override {
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->stream == nullptr) return;
      state_->stream = nullptr;
    }
    service_->core_->Unsubscribe(state_->subscription);
    service_->metrics_->CountCall("Watch", "OK");
    Finish(grpc::Status::OK);
  }

  void OnDone() override { delete this; }

 private:
  struct State {
    std::mutex mutex{};
    WatchStream* stream = nullptr;  // Null: over.
    std::deque<v1::PlanStatistics> waiting{};
    int64_t subscription = 0;
  };

  // With the lock.
  void WriteNext() {
    if (writing_ || state_->waiting.empty()) return;
    current_ = std::move(state_->waiting.front());
    state_->waiting.pop_front();
    writing_ = true;
    StartWrite(&current_);
  }

  std::shared_ptr<State> state_;
  GrpcService* service_;
  v1::PlanStatistics current_{};
  bool writing_ = false;
};

grpc::ServerWriteReactor<v1::PlanStatistics>* GrpcService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  return new WatchStream(this, context, request->job_id());
}

}  // namespace pipeloom::service
