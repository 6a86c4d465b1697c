// A gRPC server of one thread: calls come and go as bytes, and what takes long
// is done elsewhere.
//
// One thread, since a second one that polls costs more than it gives: in gRPC
// 1.51 one thread polls for all, and hands the polling on to another whenever
// it has something to do. Beside two busy threads of niceness 10, on two cores,
// 1,500 calls answered with 14 KB took 0.20 ms with one thread (99 %: 0.3 to
// 0.5 ms in all but two of some twenty runs), and 0.25 ms with two, or with
// gRPC's callback interface, which has two of its own (99 %: mostly 3 to 4 ms).
// For the same reason health checking and reflection are not gRPC's
// (service/rpc/standard_services.h).
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

// One call. Lives as long as gRPC or anybody else needs it; may be used from
// any thread. What is asked of a call that is over does nothing.
class RpcCall : public std::enable_shared_from_this<RpcCall> {
 public:
  explicit RpcCall(RpcServer* server);
  ~RpcCall();
  RpcCall(const RpcCall&) = delete;
  RpcCall& operator=(const RpcCall&) = delete;

  std::chrono::system_clock::time_point deadline() const;
  // Empty: there is none of this name.
  std::string Metadata(const std::string& name) const;
  // Of a call with one request.
  const grpc::ByteBuffer& request() const { return request_; }

  // `done` is called on the server's thread, once; false: there is no other
  // request. One at a time. Not for calls with one request.
  void Read(std::function<void(bool, const grpc::ByteBuffer&)> done);
  // Called once when the caller has left or its deadline is over, on the
  // server's thread, or at once if that is so already; never after Finish.
  void OnCancel(std::function<void()> left);
  // Tells the caller that it was heard, before the first answer.
  void SendHeaders();
  // One more answer. Of those that the caller is too slow for, the last 1024
  // are kept. Returns how many wait.
  size_t Send(grpc::ByteBuffer answer);
  // Before Finish.
  void AddTrailing(const std::string& name, const std::string& value);
  // After what was sent. The last: nothing may follow.
  void Finish(const grpc::Status& status);
  void Finish(grpc::ByteBuffer answer);

 private:
  friend class RpcServer;
  enum Event { kBegin, kRead, kWritten, kFinished, kOver, kNumEvents };
  struct Tag {
    RpcCall* call = nullptr;
    Event event = kBegin;
  };

  bool Late();                // The caller has left, or its deadline is over.
  void* Expect(Event event);  // With the lock.
  void WriteNext();           // With the lock.
  // On the server's thread.
  void Happened(Event event, bool ok);

  RpcServer* server_;
  grpc::GenericServerContext context_{};
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag tags_[kNumEvents]{};
  grpc::ByteBuffer request_{};

  std::mutex mutex_{};
  std::shared_ptr<RpcCall> self_{};  // While gRPC owes it an event.
  int expected_ = 0;                 // Events.
  bool over_ = false;
  bool writing_ = false;
  bool finishing_ = false;  // Nothing more may be asked for.
  std::deque<grpc::ByteBuffer> waiting_{};
  std::optional<grpc::Status> last_{};
  std::function<void(bool, const grpc::ByteBuffer&)> read_{};
  std::function<void()> left_{};
};

class RpcServer {
 public:
  using Handler = std::function<void(const std::shared_ptr<RpcCall>&)>;

  // A call beyond `most_calls` open ones is RESOURCE_EXHAUSTED, with a hint
  // when to come again.
  explicit RpcServer(int64_t most_calls = 32'768) : most_calls_(most_calls) {}
  // As Stop at once.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Before Start. `path` is "/package.Service/Method". Handlers are called on
  // the server's thread and must not take long; not for a caller who is known
  // to have left by then, or whose deadline, counted from when the call was
  // heard of, is over. Other paths are answered UNIMPLEMENTED.
  void Add(const std::string& path, Handler handler);        // One request.
  void AddStream(const std::string& path, Handler handler);  // It reads them.

  // False: `builder` could not build; it has its addresses and limits.
  bool Start(grpc::ServerBuilder* builder);
  // Takes no new call, cuts off those that take longer than `grace`, and waits
  // until nobody holds a call any more.
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
  int64_t calls_ = 0;  // Objects.
  std::jthread thread_{};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_RPC_SERVER_H_
