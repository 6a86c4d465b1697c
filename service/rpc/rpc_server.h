// A gRPC server with one thread: requests and answers are bytes, and work that
// takes long is done on other threads.
//
// It has one thread, since a second polling thread costs more than it gives: in
// gRPC 1.51 one thread polls for all, and hands the polling on to another
// whenever it has something to do. Measured on two cores, while two threads of
// niceness 10 were busy: 1,500 calls answered with 14 KB took 0.20 ms each with
// one thread (99 %: 0.3 to 0.5 ms in all but two of some twenty runs), and
// 0.25 ms with two threads, or with gRPC's callback interface, which has two
// (99 %: mostly 3 to 4 ms). For the same reason, gRPC's own health checking and
// reflection are not used (service/rpc/standard_services.h).
#ifndef PIPELOOM_SERVICE_RPC_RPC_SERVER_H_
#define PIPELOOM_SERVICE_RPC_RPC_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/units.h"
#include "service/os/memory_budget.h"

namespace pipeloom::service {

class RpcServer;

// Makes the server of a builder take connections that a guard hands over
// (service/guard/connection_guard.h), instead of accepting them itself.
std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> AddConnections(
    grpc::ServerBuilder* builder);
// Gives the server a connection and its ownership.
void HandOver(grpc::experimental::ExternalConnectionAcceptor* acceptor, int fd);

// Limits on what callers use together. A call beyond a limit gets
// RESOURCE_EXHAUSTED, with a hint when to try again.
struct RpcLimits {
  int64_t calls = 32'768;              // Open at a time.
  int64_t calls_of_connection = 4096;  // Open at a time on one connection.
  // Memory of parsed requests and of answers that were not read yet; half of it
  // for one connection.
  Bytes memory{int64_t{512} << 20};
  // A request has to arrive in full within this time of its headers.
  std::chrono::milliseconds request_time{20'000};
};

// Memory that is reserved for a parsed request, until it is destroyed.
class RequestMemory {
 public:
  RequestMemory(std::shared_ptr<MemoryBudget> budget, std::string caller,
                int64_t bytes)
      : budget_(std::move(budget)), caller_(std::move(caller)), bytes_(bytes) {}
  ~RequestMemory();
  RequestMemory(const RequestMemory&) = delete;
  RequestMemory& operator=(const RequestMemory&) = delete;

 private:
  const std::shared_ptr<MemoryBudget> budget_;
  const std::string caller_;
  const int64_t bytes_;
};

// One call. It lives as long as gRPC or another holder needs it. Threads: any.
// Methods do nothing after the call is over.
class RpcCall : public std::enable_shared_from_this<RpcCall> {
 public:
  explicit RpcCall(RpcServer* server);
  ~RpcCall();
  RpcCall(const RpcCall&) = delete;
  RpcCall& operator=(const RpcCall&) = delete;

  std::chrono::system_clock::time_point deadline() const;
  // Returns the value of a metadata entry; empty if there is none.
  std::string Metadata(const std::string& name) const;
  // Returns the request of a call with one request.
  const grpc::ByteBuffer& request() const { return request_; }

  // The most memory that a request may take, and a reservation of it.
  // ResourceExhausted: it is too large, or others use too much; then with a
  // hint when to try again.
  int64_t most_memory() const;
  absl::StatusOr<std::unique_ptr<RequestMemory>> ReserveForRequest(
      int64_t bytes) const;

  // Reads the next request. Calls `done` once, on the server's thread, with
  // false if there is no further request. REQUIRES: the call has a stream of
  // requests, and no other Read is under way.
  void Read(std::function<void(bool, const grpc::ByteBuffer&)> done);
  // Does the same, and finishes the call if the request does not arrive within
  // the server's request_time. REQUIRES: called on the server's thread.
  void ReadInTime(std::function<void(bool, const grpc::ByteBuffer&)> done);
  // Sets a function that is called once when the caller has left or its
  // deadline is over: on the server's thread, or at once if that is so already,
  // but never after Finish. A call that was finished because its answers were
  // not read counts as one whose caller has left.
  void OnCancel(std::function<void()> left);
  // Sends the headers before the first answer, so that the caller knows that
  // the call has begun.
  void SendHeaders();
  // Sends one more answer. If the caller is too slow, only the last 1024 unsent
  // answers are kept; if they take too much memory, the call is finished with
  // RESOURCE_EXHAUSTED. Returns the number of unsent answers.
  size_t Send(grpc::ByteBuffer answer);
  // Adds trailing metadata. REQUIRES: Finish was not called.
  void AddTrailing(const std::string& name, const std::string& value);
  // Finish the call after all answers that were sent; nothing may follow. An
  // answer for which there is no memory becomes RESOURCE_EXHAUSTED.
  void Finish(const grpc::Status& status);
  void Finish(grpc::ByteBuffer answer);

 private:
  friend class RpcServer;
  enum Event { kBegin, kRead, kWritten, kFinished, kOver, kNumEvents };
  struct Tag {
    RpcCall* call = nullptr;
    Event event = kBegin;
  };
  using ReadDone = std::function<void(bool, const grpc::ByteBuffer&)>;

  // Begins to read; false if the call is over.
  bool StartRead(ReadDone* done);
  // Returns whether the caller has left or its deadline is over.
  bool Late();
  void* Expect(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reserves memory for an answer; false if there is none left.
  bool Keep(const grpc::ByteBuffer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives back the memory of so many bytes of answers.
  void Release(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the call without its answer.
  void Overflow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles an event. Called on the server's thread.
  void Happened(Event event, bool ok);

  RpcServer* server_;
  grpc::GenericServerContext context_{};
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag tags_[kNumEvents]{};
  grpc::ByteBuffer request_{};
  // Set once when the call begins, on the server's thread.
  std::string peer_{};
  int64_t timed_read_ = 0;  // Id in RpcServer::unread_; on its thread only.

  Mutex mutex_{};
  // Set while gRPC owes it an event.
  std::shared_ptr<RpcCall> self_ ABSL_GUARDED_BY(mutex_){};
  // Number of events that gRPC owes.
  int expected_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether Finish was called.
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the server finished it because its answers were not read.
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> waiting_ ABSL_GUARDED_BY(mutex_){};
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes being written.
  int64_t kept_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes, those in flight too.
  std::optional<grpc::Status> last_ ABSL_GUARDED_BY(mutex_){};
  ReadDone read_ ABSL_GUARDED_BY(mutex_){};
  std::function<void()> left_ ABSL_GUARDED_BY(mutex_){};
};

class RpcServer {
 public:
  using Handler = std::function<void(const std::shared_ptr<RpcCall>&)>;
  // Says whether a call is admitted, from its metadata alone.
  using Admission = std::function<grpc::Status(const RpcCall&)>;

  explicit RpcServer(RpcLimits limits = {});
  // Stops without grace.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Add a method with one request, or one whose handler reads a stream of
  // requests. `path` is "/package.Service/Method". `admit` is asked before
  // anything of a request is read; a call that is not admitted is finished with
  // the status that it returns. Handlers are called on the server's thread and
  // must not take long. They are not called if the caller is known to have
  // left, or if its deadline, counted from the arrival of the call, is over.
  // Other paths are answered with UNIMPLEMENTED. REQUIRES: Start was not
  // called.
  void Add(const std::string& path, Handler handler, Admission admit = {});
  void AddStream(const std::string& path, Handler handler,
                 Admission admit = {});

  // Starts to serve with the addresses and limits of `builder`. Returns false
  // if it could not build a server.
  bool Start(grpc::ServerBuilder* builder);
  // Takes no new call, cuts off calls that take longer than `grace`, and waits
  // until no call is held.
  void Stop(std::chrono::nanoseconds grace);

  // Bytes of requests and unread answers.
  int64_t memory_used() const { return budget_->used(); }

 private:
  friend class RpcCall;
  using Clock = std::chrono::steady_clock;
  struct Method {
    Handler handler{};
    Admission admit{};
    bool one_request = true;
  };
  struct Unread {
    Clock::time_point until{};
    RpcCall* call = nullptr;
  };

  void Accept();
  void Begin(RpcCall* call);
  // Returns why there are too many calls, if so.
  absl::Status CountCall(RpcCall* call);
  void Serve();
  // Finishes calls whose request did not arrive in time.
  void EndLateReads();

  const RpcLimits limits_;
  const std::shared_ptr<MemoryBudget> budget_;
  std::map<std::string, Method, std::less<>> methods_{};
  grpc::AsyncGenericService service_{};
  std::unique_ptr<grpc::ServerCompletionQueue> queue_{};
  std::unique_ptr<grpc::Server> server_{};
  // Calls that wait for a request, by the order of their beginning. Used by the
  // server's thread only.
  std::map<int64_t, Unread> unread_{};
  int64_t next_unread_ = 1;

  Mutex mutex_{};
  CondVar ended_{};                            // A call ended.
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of RpcCall objects.
  std::map<std::string, int64_t> calls_of_ ABSL_GUARDED_BY(mutex_){};
  std::jthread thread_{};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_RPC_SERVER_H_
