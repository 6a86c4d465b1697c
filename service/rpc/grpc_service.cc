#include "service/rpc/grpc_service.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "proto/convert/plan_proto.h"
#include "service/core/what_if.h"
#include "service/jobs/job_errors.h"
#include "service/os/thread_priority.h"
#include "service/rpc/rpc_messages.h"

namespace pipeloom::service {
namespace {

using Clock = PlannerCore::Clock;

constexpr int32_t kPoolThreads = 4;
constexpr int32_t kPoolWaiting = 4096;
constexpr int32_t kOpeningThreads = 2;
constexpr int32_t kToolThreads = 2;
constexpr int32_t kToolWaiting = 256;
constexpr std::chrono::seconds kMaxWait{60};
constexpr std::chrono::hours kMaxOpening{1};
constexpr size_t kMaxMessage = 1024;  // An error message goes in a header.

// Converts a status; the codes have the same numbers.
grpc::Status ToGrpc(const absl::Status& status) {
  std::string message(status.message().substr(0, kMaxMessage));
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::move(message));
}

std::string PathOf(const char* method) {
  return absl::StrCat("/", GrpcService::kName, "/", method);
}

absl::Status Left() { return absl::CancelledError("the caller left"); }

// Returns the caller's deadline on the steady clock, as the wall clock may jump
// later.
Clock::time_point DeadlineOf(const RpcCall& call,
                             std::chrono::seconds most = kMaxWait) {
  const auto left = call.deadline() - std::chrono::system_clock::now();
  return Clock::now() +
         std::clamp<std::chrono::nanoseconds>(
             std::chrono::duration_cast<std::chrono::nanoseconds>(left),
             std::chrono::nanoseconds(0), most);
}

// Compares two secrets in a time that does not depend on where they differ.
bool SameSecret(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  }
  return difference == 0;
}

// Returns the bytes, which live as long as the slice.
grpc::Slice Keep(const std::shared_ptr<const std::string>& bytes) {
  using Kept = std::shared_ptr<const std::string>;
  return grpc::Slice(
      const_cast<char*>(bytes->data()), bytes->size(),
      [](void* kept) { delete static_cast<Kept*>(kept); }, new Kept(bytes));
}

template <typename Response>
absl::StatusOr<grpc::ByteBuffer> Serialised(
    const absl::StatusOr<Response>& made) {
  if (!made.ok()) return made.status();
  return ToBytes(*made);
}

absl::StatusOr<v1::EmulateResponse> EmulateGiven(
    const v1::EmulateRequest& request) {
  if (!request.has_plan()) {
    return absl::InvalidArgumentError(
        "source is not set; it must be `key` or `plan`");
  }
  const auto plan = convert::FromProto(request.plan());
  if (!plan.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan.", plan.status().message()));
  }
  if (const absl::Status valid = ValidateExecutionPlan(*plan); !valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("plan: ", valid.message()));
  }
  return EmulatePlan(*plan, request);
}

}  // namespace

struct GrpcService::Call {
  std::shared_ptr<RpcCall> rpc{};
  const char* method = "";
  std::stop_source stop{};  // Requested when the caller leaves.
  Mutex mutex{};
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  int64_t wait ABSL_GUARDED_BY(mutex) =
      0;  // Id that Await returned; 0 if there is none.
};

// The batches that a SubmitBatches call has accepted so far.
struct GrpcService::Submissions {
  v1::SubmitBatchesResponse response{};
  int64_t index = 0;
};

GrpcService::GrpcService(PlannerCore* core, Metrics* metrics, std::string token,
                         RpcServer* server)
    : core_(core),
      metrics_(metrics),
      token_(std::move(token)),
      answers_(1, std::numeric_limits<int32_t>::max(), AnswerAtOnce),
      pool_(kPoolThreads, kPoolWaiting,
            [] { MakeWayForServing(Background::kRequests); }),
      opening_(kOpeningThreads, kPoolWaiting,
               [] { MakeWayForServing(Background::kSearch); }),
      tools_(kToolThreads, kToolWaiting,
             [] { MakeWayForServing(Background::kSearch); }) {
  AddOnPool<v1::ReportTraceRequest>(server, "ReportTrace",
                                    [this](const auto& request, const auto&) {
                                      return Serialised(core_->Report(request));
                                    });
  AddOnPool<v1::WhatIfRequest>(
      server, "WhatIf",
      [this](const auto& request, const auto& stop) {
        return Serialised(core_->WhatIf(request, stop));
      },
      &tools_);
  AddOnPool<v1::CloseJobRequest>(server, "CloseJob",
                                 [this](const auto& request, const auto&) {
                                   return Serialised(core_->Close(request));
                                 });
  AddOnPool<v1::ListJobsRequest>(
      server, "ListJobs",
      [this](const auto&, const auto&) { return ToBytes(core_->List()); });
  const auto add = [&](const char* method, auto handle) {
    server->Add(
        PathOf(method),
        [=, this](const auto& rpc) { handle(Begin(rpc, method)); },
        AdmissionTo(method));
  };
  add("OpenJob", [this](const CallPtr& call) { OpenJob(call, nullptr, {}); });
  add("SubmitBatch", [this](const CallPtr& call) { SubmitBatch(call); });
  add("GetRankPlan", [this](const CallPtr& call) { GetRankPlan(call); });
  add("GetPlan", [this](const CallPtr& call) { GetPlan(call); });
  add("Emulate", [this](const CallPtr& call) { Emulate(call); });
  add("Watch", [this](const CallPtr& call) { Watch(call); });
  server->AddStream(
      PathOf("SubmitBatches"),
      [this](const auto& rpc) {
        ReadSubmission(Begin(rpc, "SubmitBatches"),
                       std::make_shared<Submissions>());
      },
      AdmissionTo("SubmitBatches"));
}

RpcServer::Admission GrpcService::AdmissionTo(const char* method) {
  if (token_.empty()) return {};
  return [this, method](const RpcCall& rpc) {
    if (SameSecret(rpc.Metadata("authorization"),
                   absl::StrCat("Bearer ", token_))) {
      return grpc::Status::OK;
    }
    metrics_->CountCall(method, "UNAUTHENTICATED");
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                        "metadata \"authorization\" must be \"Bearer \" and "
                        "the service's token");
  };
}

GrpcService::CallPtr GrpcService::Begin(const std::shared_ptr<RpcCall>& rpc,
                                        const char* method) {
  auto call = std::make_shared<Call>();
  call->rpc = rpc;
  call->method = method;
  rpc->OnCancel([this, call] {
    int64_t wait = 0;
    {
      const MutexLock lock(&call->mutex);
      call->cancelled = true;
      wait = call->wait;
    }
    call->stop.request_stop();
    if (wait != 0 && core_->CancelAwait(wait)) End(call, Left());
  });
  return call;
}

void GrpcService::End(const CallPtr& call, const Answer& answer) {
  const absl::Status& status = answer.status();
  metrics_->CountCall(call->method, absl::StatusCodeToString(status.code()));
  if (answer.ok()) {
    call->rpc->Finish(*answer);
    return;
  }
  if (const auto hint = status.GetPayload(kRetryAfter)) {
    call->rpc->AddTrailing(kRetryAfter, std::string(*hint));
  }
  call->rpc->Finish(ToGrpc(status));
}

void GrpcService::EndOnPool(const CallPtr& call, WorkerPool* pool, Work work) {
  const bool posted = pool->Post([this, call, work = std::move(work)] {
    const std::stop_token stop = call->stop.get_token();
    Answer answer = stop.stop_requested() ? Answer(Left()) : work(stop);
    answers_.Post(
        [this, call, answer = std::move(answer)] { End(call, answer); });
  });
  if (!posted) End(call, Busy("too many calls wait", 200));
}

template <typename Request>
void GrpcService::AddOnPool(
    RpcServer* server, const char* method,
    std::function<Answer(const Request&, const std::stop_token&)> work,
    WorkerPool* pool) {
  if (pool == nullptr) pool = &pool_;
  server->Add(
      PathOf(method),
      [=, this](const auto& rpc) {
        const CallPtr call = Begin(rpc, method);
        EndOnPool(call, pool, [=](const std::stop_token& stop) -> Answer {
          PIPELOOM_ASSIGN_OR_RETURN(
              const ParsedRequest<Request> request,
              ReadMessage<Request>(call->rpc.get(), call->rpc->request()));
          return work(*request, stop);
        });
      },
      AdmissionTo(method));
}

void GrpcService::OnPlan(
    const CallPtr& call, const PlanKey& key, int32_t rank, bool long_use,
    std::function<Answer(const std::shared_ptr<const ReadyPlan>&)> use) {
  const int64_t wait = core_->Await(
      key, rank, DeadlineOf(*call->rpc),
      [=, this, use = std::move(use)](const PlanOrError& plan) {
        if (!plan.ok()) {
          End(call, plan.status());
        } else if (long_use) {
          EndOnPool(
              call, &tools_,
              [call, use, ready = *plan](const std::stop_token&) -> Answer {
                PIPELOOM_ASSIGN_OR_RETURN(
                    const std::unique_ptr<RequestMemory> memory,
                    call->rpc->ReserveForRequest(ready->size.count()));
                return use(ready);
              });
        } else {
          End(call, use(*plan));
        }
      });
  if (wait == 0) return;
  bool cancelled = false;
  {
    const MutexLock lock(&call->mutex);
    call->wait = wait;
    cancelled = call->cancelled;
  }
  // The caller left before the id of its wait was known.
  if (cancelled && core_->CancelAwait(wait)) End(call, Left());
}

void GrpcService::OpenJob(
    const CallPtr& call,
    const std::shared_ptr<const v1::OpenJobRequest>& request,
    Clock::time_point deadline) {
  if (deadline == Clock::time_point()) {
    deadline = DeadlineOf(*call->rpc, kMaxOpening);
  }
  const bool posted = opening_.Post([=, this] {
    auto known = request;
    if (known == nullptr) {
      auto read = ReadMessage<v1::OpenJobRequest>(call->rpc.get(),
                                                  call->rpc->request());
      if (!read.ok()) {
        answers_.Post([=, this, s = read.status()] { End(call, s); });
        return;
      }
      // Its memory lives as long as the message.
      const auto held =
          std::make_shared<ParsedRequest<v1::OpenJobRequest>>(*std::move(read));
      known = {held, &held->message};
    }
    // Tries again when another call that opens the same job has ended.
    const absl::StatusOr<v1::OpenJobResponse> opened =
        core_->OpenJob(*known, deadline, call->stop.get_token(),
                       [=, this] { OpenJob(call, known, deadline); });
    if (absl::IsAborted(opened.status())) return;
    answers_.Post(
        [=, this, answer = Serialised(opened)] { End(call, answer); });
  });
  if (!posted) End(call, Busy("too many calls wait", 200));
}

void GrpcService::GetRankPlan(const CallPtr& call) {
  const Clock::time_point begin = Clock::now();
  const auto parsed = ReadMessage<v1::GetRankPlanRequest>(call->rpc.get(),
                                                          call->rpc->request());
  if (!parsed.ok()) {
    End(call, parsed.status());
    return;
  }
  const v1::GetRankPlanRequest* const request = &parsed->message;
  if (request->rank() < 0) {
    End(call, absl::InvalidArgumentError(absl::StrFormat(
                  "rank is %d; it must be >= 0", request->rank())));
    return;
  }
  OnPlan(call,
         {request->job_id(), request->step(), request->replica(),
          request->attempt()},
         request->rank(), /*long_use=*/false,
         [this, begin, rank = RankId(request->rank())](
             const std::shared_ptr<const ReadyPlan>& plan) {
           const grpc::Slice parts[] = {Keep(plan->shares[rank]),
                                        Keep(plan->common_share)};
           metrics_->share.Add(
               std::chrono::nanoseconds(Clock::now() - begin).count());
           return grpc::ByteBuffer(parts, 2);
         });
}

void GrpcService::GetPlan(const CallPtr& call) {
  const auto parsed =
      ReadMessage<v1::GetPlanRequest>(call->rpc.get(), call->rpc->request());
  if (!parsed.ok()) {
    End(call, parsed.status());
    return;
  }
  const v1::GetPlanRequest* const request = &parsed->message;
  OnPlan(call,
         {request->job_id(), request->step(), request->replica(),
          request->attempt()},
         -1, /*long_use=*/true,
         [](const std::shared_ptr<const ReadyPlan>& plan) {
           return ToBytes(WholePlan(*plan));
         });
}

void GrpcService::Emulate(const CallPtr& call) {
  // Parsed on the pool, as the request may hold a whole plan.
  const bool posted = tools_.Post([this, call] {
    const auto parsed =
        ReadMessage<v1::EmulateRequest>(call->rpc.get(), call->rpc->request());
    const auto end = [&](Answer answer) {
      answers_.Post(
          [this, call, answer = std::move(answer)] { End(call, answer); });
    };
    if (!parsed.ok()) {
      end(parsed.status());
      return;
    }
    const v1::EmulateRequest& request = parsed->message;
    if (!request.has_key()) {
      end(Serialised(EmulateGiven(request)));
      return;
    }
    const v1::GetPlanRequest& key = request.key();
    OnPlan(call, {key.job_id(), key.step(), key.replica(), key.attempt()}, -1,
           /*long_use=*/true,
           [request](const std::shared_ptr<const ReadyPlan>& plan) {
             return Serialised(EmulatePlan(plan->plan, request));
           });
  });
  if (!posted) End(call, Busy("too many calls wait", 200));
}

// Reads a batch, submits it on the pool, reads the next.
void GrpcService::ReadSubmission(const CallPtr& call,
                                 const std::shared_ptr<Submissions>& all) {
  call->rpc->Read([=, this](bool ok, const grpc::ByteBuffer& bytes) {
    if (!ok) {  // The caller has sent all, or has left.
      End(call, ToBytes(all->response));
      return;
    }
    const bool posted = pool_.Post([=, this] {
      const Answer answer = Submit(call, bytes, all.get());
      if (answer.ok()) {
        ReadSubmission(call, all);
      } else {
        answers_.Post([=, this] { End(call, answer); });
      }
    });
    if (!posted) End(call, Busy("too many calls wait", 200));
  });
}

void GrpcService::SubmitBatch(const CallPtr& call) {
  EndOnPool(call, &pool_, [this, call](const std::stop_token&) -> Answer {
    PIPELOOM_ASSIGN_OR_RETURN(
        const ParsedRequest<v1::SubmitBatchRequest> request,
        ReadMessage<v1::SubmitBatchRequest>(call->rpc.get(),
                                            call->rpc->request()));
    std::string note;
    Answer answer = Serialised(core_->Submit(*request, &note));
    if (!note.empty()) call->rpc->AddTrailing(kNote, note);
    return answer;
  });
}

GrpcService::Answer GrpcService::Submit(const CallPtr& call,
                                        const grpc::ByteBuffer& bytes,
                                        Submissions* all) {
  const auto parsed =
      ReadMessage<v1::SubmitBatchRequest>(call->rpc.get(), bytes);
  const absl::StatusOr<v1::SubmitBatchResponse> result =
      parsed.ok() ? core_->Submit(parsed->message) : parsed.status();
  if (!result.ok()) {
    absl::Status status(result.status().code(),
                        absl::StrCat("submission ", all->index, ": ",
                                     result.status().message()));
    if (const auto hint = result.status().GetPayload(kRetryAfter)) {
      status.SetPayload(kRetryAfter, *hint);
    }
    return status;
  }
  ++all->index;
  v1::SubmitBatchesResponse& response = all->response;
  if (result->existed()) {
    response.set_existed(response.existed() + 1);
  } else {
    response.set_accepted(response.accepted() + 1);
  }
  response.set_queued(result->queued());
  return grpc::ByteBuffer();
}

void GrpcService::Watch(const CallPtr& call) {
  const auto parsed =
      ReadMessage<v1::WatchRequest>(call->rpc.get(), call->rpc->request());
  if (!parsed.ok()) {
    End(call, parsed.status());
    return;
  }
  // Sends headers at once, so that the caller knows that it watches.
  call->rpc->SendHeaders();
  const int64_t id =
      core_->Subscribe([rpc = call->rpc, job = parsed->message.job_id()](
                           const v1::PlanStatistics& statistics) {
        if (job.empty() || statistics.job_id() == job) {
          rpc->Send(ToBytes(statistics));
        }
      });
  call->rpc->OnCancel([this, id] {
    core_->Unsubscribe(id);
    metrics_->CountCall("Watch", "OK");
  });
}

}  // namespace pipeloom::service
