#include "service/rpc/rpc_server.h"

#include <malloc.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/jobs/job_errors.h"
#include "service/os/thread_priority.h"

namespace pipeloom::service {
namespace {

constexpr size_t kMaxWaiting = 1024;  // Unsent answers of one call.
constexpr std::chrono::seconds kLateReadPeriod{1};
// A parsed request is copied into values before it is done with.
constexpr int64_t kCopies = 2;
// After a request of this size, the heap gives its pages back.
constexpr int64_t kLargeRequest = int64_t{32} << 20;

grpc::Status Overloaded(const std::string& reason) {
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, reason);
}

}  // namespace

std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> AddConnections(
    grpc::ServerBuilder* builder) {
  return builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
}

void HandOver(grpc::experimental::ExternalConnectionAcceptor* acceptor,
              int fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
      connection;
  connection.fd = fd;
  acceptor->HandleNewConnection(&connection);
}

RequestMemory::~RequestMemory() {
  budget_->Give(caller_, bytes_);
  // The message is gone by now: it is declared after its memory.
  if (bytes_ >= kLargeRequest) malloc_trim(0);
}

RpcCall::RpcCall(RpcServer* server) : server_(server) {
  for (int e = 0; e < kNumEvents; ++e) {
    tags_[e] = {this, static_cast<Event>(e)};
  }
  const MutexLock lock(&server_->mutex_);
  ++server_->calls_;
}

RpcCall::~RpcCall() {
  {
    const MutexLock lock(&mutex_);
    Release(kept_);
  }
  const MutexLock lock(&server_->mutex_);
  --server_->calls_;
  server_->ended_
      .NotifyAll();  // Under the lock, as the server may end after it.
  const auto found = server_->calls_of_.find(peer_);
  if (found != server_->calls_of_.end() && --found->second == 0) {
    server_->calls_of_.erase(found);
  }
}

std::chrono::system_clock::time_point RpcCall::deadline() const {
  return context_.deadline();
}

std::string RpcCall::Metadata(const std::string& name) const {
  const auto& metadata = context_.client_metadata();
  const auto found = metadata.find(name);
  if (found == metadata.end()) return "";
  return std::string(found->second.data(), found->second.size());
}

int64_t RpcCall::most_memory() const {
  return server_->budget_->all() / kCopies;
}

absl::StatusOr<std::unique_ptr<RequestMemory>> RpcCall::ReserveForRequest(
    int64_t bytes) const {
  const int64_t most = server_->budget_->all();
  if (kCopies * bytes > most) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the request would take more than %s of memory; send fewer samples at "
        "a time",
        FormatBytes(Bytes(most / kCopies))));
  }
  if (!server_->budget_->Take(peer_, kCopies * bytes)) {
    return Busy(
        absl::StrFormat("other requests and unread answers take too much of %s",
                        FormatBytes(Bytes(most))),
        200);
  }
  return std::make_unique<RequestMemory>(server_->budget_, peer_,
                                         kCopies * bytes);
}

bool RpcCall::Late() {
  const MutexLock lock(&mutex_);
  return over_ || context_.deadline() <= std::chrono::system_clock::now();
}

void* RpcCall::Expect(Event event) {
  ++expected_;
  return &tags_[event];
}

bool RpcCall::StartRead(ReadDone* done) {
  const MutexLock lock(&mutex_);
  if (over_) return false;
  read_ = std::move(*done);
  request_.Clear();
  stream_.Read(&request_, Expect(kRead));
  return true;
}

void RpcCall::Read(ReadDone done) {
  if (!StartRead(&done)) done(false, {});
}

void RpcCall::ReadInTime(ReadDone done) {
  if (!StartRead(&done)) {
    done(false, {});
    return;
  }
  // The event that ends the read comes to this thread, so it comes later.
  timed_read_ = server_->next_unread_++;
  server_->unread_.emplace(
      timed_read_,
      RpcServer::Unread{RpcServer::Clock::now() + server_->limits_.request_time,
                        this});
}

bool RpcCall::Keep(const grpc::ByteBuffer& answer) {
  const auto bytes = static_cast<int64_t>(answer.Length());
  if (!server_->budget_->Take(peer_, bytes)) return false;
  kept_ += bytes;
  return true;
}

void RpcCall::Release(int64_t bytes) {
  if (bytes == 0) return;
  kept_ -= bytes;
  server_->budget_->Give(peer_, bytes);
}

void RpcCall::Overflow() {
  for (const grpc::ByteBuffer& answer : waiting_) {
    Release(static_cast<int64_t>(answer.Length()));
  }
  waiting_.clear();
  finishing_ = true;
  overflowed_ = true;
  context_.AddTrailingMetadata(kRetryAfter, "200");
  last_ = Overloaded("answers that were not read take too much memory");
  WriteNext();
}

void RpcCall::OnCancel(std::function<void()> left) {
  {
    const MutexLock lock(&mutex_);
    if (finishing_) return;
    if (!over_) {
      left_ = std::move(left);
      return;
    }
  }
  left();
}

void RpcCall::SendHeaders() {
  const MutexLock lock(&mutex_);
  if (over_ || finishing_ || writing_) return;
  writing_ = true;
  stream_.SendInitialMetadata(Expect(kWritten));
}

size_t RpcCall::Send(grpc::ByteBuffer answer) {
  const MutexLock lock(&mutex_);
  if (over_ || finishing_) return 0;
  if (!Keep(answer)) {
    Overflow();
    return 0;
  }
  if (waiting_.size() >= kMaxWaiting) {
    Release(static_cast<int64_t>(waiting_.front().Length()));
    waiting_.pop_front();
  }
  waiting_.push_back(std::move(answer));
  WriteNext();
  return waiting_.size();
}

void RpcCall::AddTrailing(const std::string& name, const std::string& value) {
  const MutexLock lock(&mutex_);
  if (!over_ && !finishing_) context_.AddTrailingMetadata(name, value);
}

void RpcCall::Finish(const grpc::Status& status) {
  std::function<void()> left;  // Destroyed without the lock.
  const MutexLock lock(&mutex_);
  if (over_ || finishing_) return;
  finishing_ = true;
  left = std::move(left_);
  last_ = status;
  WriteNext();
}

void RpcCall::Finish(grpc::ByteBuffer answer) {
  std::function<void()> left;
  const MutexLock lock(&mutex_);
  if (over_ || finishing_) return;
  left = std::move(left_);
  if (!Keep(answer)) {
    Overflow();
    return;
  }
  finishing_ = true;
  last_ = grpc::Status::OK;
  waiting_.push_back(std::move(answer));
  WriteNext();
}

void RpcCall::WriteNext() {
  if (writing_ || over_) return;
  if (waiting_.empty()) {
    if (!last_.has_value()) return;
    writing_ = true;
    stream_.Finish(*last_, Expect(kFinished));
    return;
  }
  writing_ = true;
  const grpc::ByteBuffer next = std::move(waiting_.front());
  waiting_.pop_front();
  in_flight_ = static_cast<int64_t>(next.Length());
  if (last_.has_value() && waiting_.empty()) {
    stream_.WriteAndFinish(next, grpc::WriteOptions(), *last_,
                           Expect(kFinished));
  } else {
    stream_.Write(next, Expect(kWritten));
  }
}

void RpcCall::Happened(Event event, bool ok) {
  if (event == kRead) server_->unread_.erase(std::exchange(timed_read_, 0));
  std::function<void(bool, const grpc::ByteBuffer&)> read;
  std::function<void()> left;
  // May be the last reference; destroyed without the lock.
  std::shared_ptr<RpcCall> last;
  {
    const MutexLock lock(&mutex_);
    if (--expected_ == 0) last = std::move(self_);
    switch (event) {
      case kRead:
        read = std::move(read_);
        read_ = nullptr;
        break;
      case kFinished:
        Release(std::exchange(in_flight_, 0));
        break;
      case kWritten:
        writing_ = false;
        Release(std::exchange(in_flight_, 0));
        if (ok) WriteNext();
        break;
      case kOver:
        over_ = true;
        if (!finishing_ || overflowed_) left = std::move(left_);
        left_ = nullptr;
        break;
      default:
        break;
    }
    // Events that were requested in the switch are owed, too.
    if (expected_ > 0 && last != nullptr) self_ = std::move(last);
  }
  if (read) read(ok, request_);
  if (left) left();
}

RpcServer::RpcServer(RpcLimits limits)
    : limits_(limits), budget_(std::make_shared<MemoryBudget>(limits.memory)) {}

RpcServer::~RpcServer() {
  Stop(std::chrono::nanoseconds(0));
  if (queue_ == nullptr) return;
  // A queue must be empty when it is destroyed, whether the server was started
  // or not.
  queue_->Shutdown();
  void* event = nullptr;
  bool ok = false;
  while (queue_->Next(&event, &ok)) {
  }
}

void RpcServer::Add(const std::string& path, Handler handler, Admission admit) {
  methods_[path] = {std::move(handler), std::move(admit), true};
}

void RpcServer::AddStream(const std::string& path, Handler handler,
                          Admission admit) {
  methods_[path] = {std::move(handler), std::move(admit), false};
}

bool RpcServer::Start(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  queue_ = builder->AddCompletionQueue();
  server_ = builder->BuildAndStart();
  if (server_ == nullptr) return false;
  Accept();
  thread_ = std::jthread([this] { Serve(); });
  return true;
}

void RpcServer::Accept() {
  const auto call = std::make_shared<RpcCall>(this);
  const MutexLock lock(&call->mutex_);
  call->self_ = call;
  // This event comes only if the call begins, so it is not owed yet.
  call->context_.AsyncNotifyWhenDone(&call->tags_[RpcCall::kOver]);
  service_.RequestCall(&call->context_, &call->stream_, queue_.get(),
                       queue_.get(), call->Expect(RpcCall::kBegin));
}

absl::Status RpcServer::CountCall(RpcCall* call) {
  std::string peer = call->context_.peer();
  // The guard names each connection; without it, callers over a Unix socket
  // have no addresses of their own.
  const bool one_connection = absl::StartsWith(peer, "unix-abstract:") ||
                              absl::StartsWith(peer, "ipv4:") ||
                              absl::StartsWith(peer, "ipv6:");
  const MutexLock lock(&mutex_);
  call->peer_ = std::move(peer);
  const int64_t mine = ++calls_of_[call->peer_];
  const int64_t open = calls_ - 1;  // One object waits for the next call.
  if (open > limits_.calls) {
    return absl::ResourceExhaustedError(
        absl::StrCat(open - 1, " calls are open, as many as may be"));
  }
  if (one_connection && mine > limits_.calls_of_connection) {
    return absl::ResourceExhaustedError(absl::StrCat(
        mine - 1, " calls are open on this connection, as many as may be"));
  }
  return absl::OkStatus();
}

void RpcServer::EndLateReads() {
  const Clock::time_point now = Clock::now();
  while (!unread_.empty() && unread_.begin()->second.until <= now) {
    RpcCall* const call = unread_.begin()->second.call;
    unread_.erase(unread_.begin());
    call->timed_read_ = 0;
    call->Finish(
        grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                     absl::StrFormat("the request did not arrive within %d ms",
                                     limits_.request_time.count())));
  }
}

void RpcServer::Begin(RpcCall* call) {
  const std::shared_ptr<RpcCall> held = call->shared_from_this();
  {
    const MutexLock lock(&call->mutex_);
    call->Expect(RpcCall::kOver);
  }
  call->Happened(RpcCall::kBegin, true);
  const auto found = methods_.find(call->context_.method());
  if (found == methods_.end()) {
    call->Finish(grpc::Status(
        grpc::StatusCode::UNIMPLEMENTED,
        absl::StrCat("there is no method ", call->context_.method())));
    return;
  }
  if (const absl::Status full = CountCall(call); !full.ok()) {
    call->AddTrailing(kRetryAfter, "100");
    call->Finish(Overloaded(std::string(full.message())));
    return;
  }
  const Method& method = found->second;
  if (method.admit) {
    if (const grpc::Status admitted = method.admit(*call); !admitted.ok()) {
      call->Finish(admitted);
      return;
    }
  }
  const auto handle = [&method](const std::shared_ptr<RpcCall>& mine) {
    if (mine->Late()) {  // The call must still be finished.
      mine->Finish(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                                "the deadline was over before the call began"));
      return;
    }
    method.handler(mine);
  };
  if (!method.one_request) {
    handle(held);
    return;
  }
  call->ReadInTime([call, handle](bool ok, const grpc::ByteBuffer&) {
    const std::shared_ptr<RpcCall> mine = call->shared_from_this();
    if (ok) {
      handle(mine);
    } else {
      mine->Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                "the call has no request"));
    }
  });
}

void RpcServer::Serve() {
  AnswerAtOnce();
  void* event = nullptr;
  bool ok = false;
  Clock::time_point next_look = Clock::now() + kLateReadPeriod;
  while (true) {
    if (Clock::now() >= next_look) {
      EndLateReads();
      next_look = Clock::now() + kLateReadPeriod;
    }
    const auto got = queue_->AsyncNext(
        &event, &ok, std::chrono::system_clock::now() + kLateReadPeriod);
    if (got == grpc::CompletionQueue::SHUTDOWN) return;
    if (got == grpc::CompletionQueue::TIMEOUT) continue;
    const auto* tag = static_cast<const RpcCall::Tag*>(event);
    if (tag->event != RpcCall::kBegin) {
      // Read's function may be the last to hold the call.
      const std::shared_ptr<RpcCall> held = tag->call->shared_from_this();
      held->Happened(tag->event, ok);
    } else if (ok) {
      Accept();
      Begin(tag->call);
    } else {  // The server stops.
      tag->call->Happened(RpcCall::kBegin, false);
    }
  }
}

void RpcServer::Stop(std::chrono::nanoseconds grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::system_clock::duration>(grace));
  {
    const MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return calls_ == 0;
    };
    ended_.Wait(&mutex_, none);
  }
  queue_->Shutdown();
  thread_.join();
  queue_.reset();
  server_.reset();
}

}  // namespace pipeloom::service
