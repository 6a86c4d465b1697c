#include "service/rpc/rpc_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/core/core_errors.h"
#include "service/os/thread_priority.h"

namespace pipeloom::service {
namespace {

constexpr size_t kMaxWaiting = 1024;  // Unsent answers of one call.

}  // namespace

RpcCall::RpcCall(RpcServer* server) : server_(server) {
  for (int e = 0; e < kNumEvents; ++e) {
    tags_[e] = {this, static_cast<Event>(e)};
  }
  const std::lock_guard lock(server_->mutex_);
  ++server_->calls_;
}

RpcCall::~RpcCall() {
  const std::lock_guard lock(server_->mutex_);
  --server_->calls_;
  server_->gone_.notify_all();
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

bool RpcCall::Late() {
  const std::lock_guard lock(mutex_);
  return over_ || context_.deadline() <= std::chrono::system_clock::now();
}

void* RpcCall::Expect(Event event) {
  ++expected_;
  return &tags_[event];
}

void RpcCall::Read(std::function<void(bool, const grpc::ByteBuffer&)> done) {
  {
    const std::lock_guard lock(mutex_);
    if (!over_) {
      read_ = std::move(done);
      request_.Clear();
      stream_.Read(&request_, Expect(kRead));
      return;
    }
  }
  done(false, {});
}

void RpcCall::OnCancel(std::function<void()> left) {
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) return;
    if (!over_) {
      left_ = std::move(left);
      return;
    }
  }
  left();
}

void RpcCall::SendHeaders() {
  const std::lock_guard lock(mutex_);
  if (over_ || finishing_ || writing_) return;
  writing_ = true;
  stream_.SendInitialMetadata(Expect(kWritten));
}

size_t RpcCall::Send(grpc::ByteBuffer answer) {
  const std::lock_guard lock(mutex_);
  if (over_ || finishing_) return 0;
  if (waiting_.size() >= kMaxWaiting) waiting_.pop_front();
  waiting_.push_back(std::move(answer));
  WriteNext();
  return waiting_.size();
}

void RpcCall::AddTrailing(const std::string& name, const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (!over_ && !finishing_) context_.AddTrailingMetadata(name, value);
}

void RpcCall::Finish(const grpc::Status& status) {
  std::function<void()> left;  // Destroyed without the lock.
  const std::lock_guard lock(mutex_);
  if (over_ || finishing_) return;
  finishing_ = true;
  left = std::move(left_);
  last_ = status;
  WriteNext();
}

void RpcCall::Finish(grpc::ByteBuffer answer) {
  std::function<void()> left;
  const std::lock_guard lock(mutex_);
  if (over_ || finishing_) return;
  finishing_ = true;
  left = std::move(left_);
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
  if (last_.has_value() && waiting_.empty()) {
    stream_.WriteAndFinish(next, grpc::WriteOptions(), *last_,
                           Expect(kFinished));
  } else {
    stream_.Write(next, Expect(kWritten));
  }
}

void RpcCall::Happened(Event event, bool ok) {
  std::function<void(bool, const grpc::ByteBuffer&)> read;
  std::function<void()> left;
  // May be the last reference; destroyed without the lock.
  std::shared_ptr<RpcCall> last;
  {
    const std::lock_guard lock(mutex_);
    if (--expected_ == 0) last = std::move(self_);
    switch (event) {
      case kRead:
        read = std::move(read_);
        read_ = nullptr;
        break;
      case kWritten:
        writing_ = false;
        if (ok) WriteNext();
        break;
      case kOver:
        over_ = true;
        if (!finishing_) left = std::move(left_);
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

void RpcServer::Add(const std::string& path, Handler handler) {
  methods_[path] = {std::move(handler), true};
}

void RpcServer::AddStream(const std::string& path, Handler handler) {
  methods_[path] = {std::move(handler), false};
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
  const std::lock_guard lock(call->mutex_);
  call->self_ = call;
  // This event comes only if the call begins, so it is not owed yet.
  call->context_.AsyncNotifyWhenDone(&call->tags_[RpcCall::kOver]);
  service_.RequestCall(&call->context_, &call->stream_, queue_.get(),
                       queue_.get(), call->Expect(RpcCall::kBegin));
}

void RpcServer::Begin(RpcCall* call) {
  const std::shared_ptr<RpcCall> held = call->shared_from_this();
  {
    const std::lock_guard lock(call->mutex_);
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
  int64_t open = 0;
  {
    const std::lock_guard lock(mutex_);
    open = calls_ - 1;  // One object waits for the next call.
  }
  if (open > most_calls_) {
    call->AddTrailing(kRetryAfter, "100");
    call->Finish(grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat(open - 1, " calls are open, as many as may be")));
    return;
  }
  const Method& method = found->second;
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
  call->Read([call, handle](bool ok, const grpc::ByteBuffer&) {
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
  while (queue_->Next(&event, &ok)) {
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
    std::unique_lock lock(mutex_);
    gone_.wait(lock, [&] { return calls_ == 0; });
  }
  queue_->Shutdown();
  thread_.join();
  queue_.reset();
  server_.reset();
}

}  // namespace pipeloom::service
