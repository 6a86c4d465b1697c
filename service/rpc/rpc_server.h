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
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace pipeloom::service {

class RpcServer;

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

  // Reads the next request. Calls `done` once, on the server's thread, with
  // false if there is no further request. REQUIRES: the call has a stream of
  // requests, and no other Read is under way.
  void Read(std::function<void(bool, const grpc::ByteBuffer&)> done);
  // Sets a function that is called once when the caller has left or its
  // deadline is over: on the server's thread, or at once if that is so already,
  // but never after Finish.
  void OnCancel(std::function<void()> left);
  // Sends the headers before the first answer, so that the caller knows that
  // the call has begun.
  void SendHeaders();
  // Sends one more answer. If the caller is too slow, only the last 1024 unsent
  // answers are kept. Returns the number of unsent answers.
  size_t Send(grpc::ByteBuffer answer);
  // Adds trailing metadata. REQUIRES: Finish was not called.
  void AddTrailing(const std::string& name, const std::string& value);
  // Finish the call after all answers that were sent; nothing may follow.
  void Finish(const grpc::Status& status);
  void Finish(grpc::ByteBuffer answer);

 private:
  friend class RpcServer;
  enum Event { kBegin, kRead, kWritten, kFinished, kOver, kNumEvents };
  struct Tag {
    RpcCall* call = nullptr;
    Event event = kBegin;
  };

  // Returns whether the caller has left or its deadline is over.
  bool Late();
  // REQUIRES, for both: the lock is held.
  void* Expect(Event event);
  void WriteNext();
  // Handles an event. Called on the server's thread.
  void Happened(Event event, bool ok);

  RpcServer* server_;
  grpc::GenericServerContext context_{};
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag tags_[kNumEvents]{};
  grpc::ByteBuffer request_{};

  std::mutex mutex_{};
  std::shared_ptr<RpcCall> self_{};  // Set while gRPC owes it an event.
  int expected_ = 0;                 // Number of events that gRPC owes.
  bool over_ = false;
  bool writing_ = false;
  bool finishing_ = false;  // Whether Finish was called.
  std::deque<grpc::ByteBuffer> waiting_{};
  std::optional<grpc::Status> last_{};
  std::function<void(bool, const grpc::ByteBuffer&)> read_{};
  std::function<void()> left_{};
};

class RpcServer {
 public:
  using Handler = std::function<void(const std::shared_ptr<RpcCall>&)>;

  // A call beyond `most_calls` open ones gets RESOURCE_EXHAUSTED, with a hint
  // when to try again.
  explicit RpcServer(int64_t most_calls = 32'768) : most_calls_(most_calls) {}
  // Stops without grace.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Add a method with one request, or one whose handler reads a stream of
  // requests. `path` is "/package.Service/Method". Handlers are called on the
  // server's thread and must not take long. They are not called if the caller
  // is known to have left, or if its deadline, counted from the arrival of the
  // call, is over. Other paths are answered with UNIMPLEMENTED. REQUIRES: Start
  // was not called.
  void Add(const std::string& path, Handler handler);        // One request.
  void AddStream(const std::string& path, Handler handler);  // It reads them.

  // Starts to serve with the addresses and limits of `builder`. Returns false
  // if it could not build a server.
  bool Start(grpc::ServerBuilder* builder);
  // Takes no new call, cuts off calls that take longer than `grace`, and waits
  // until no call is held.
  void Stop(std::chrono::nanoseconds grace);

 private:
  friend class RpcCall;
  struct Method {
    Handler handler{};
    bool one_request = true;
  };

  void Accept();
  void Begin(RpcCall* call);
  void Serve();

  int64_t most_calls_;
  std::map<std::string, Method, std::less<>> methods_{};
  grpc::AsyncGenericService service_{};
  std::unique_ptr<grpc::ServerCompletionQueue> queue_{};
  std::unique_ptr<grpc::Server> server_{};
  std::mutex mutex_{};
  std::condition_variable gone_{};
  int64_t calls_ = 0;  // Number of RpcCall objects.
  std::jthread thread_{};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_RPC_SERVER_H_
