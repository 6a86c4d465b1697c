// Helpers with which tests call service/rpc/rpc_server.h: a server with the
// methods that a test gives, calls and streams of bytes, and HTTP/2 by hand.
#ifndef PIPELOOM_TESTS_SERVICE_RPC_BY_HAND_H_
#define PIPELOOM_TESTS_SERVICE_RPC_BY_HAND_H_

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "service/rpc/rpc_server.h"

namespace pipeloom::testing {

using service::RpcCall;
using service::RpcServer;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

inline std::string Text(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  if (!bytes.DumpToSingleSlice(&slice).ok()) return "?";
  return std::string(reinterpret_cast<const char*>(slice.begin()),
                     slice.size());
}

// Set once; waits 20 s at most.
class Flag {
 public:
  void Set() {
    const MutexLock lock(&mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  bool Wait(milliseconds most = seconds(20)) {
    const MutexLock lock(&mutex_);
    const auto is_set = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return set_;
    };
    return changed_.WaitFor(&mutex_, most, is_set);
  }

 private:
  Mutex mutex_{};
  CondVar changed_{};
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

// A server with the methods that a test gives it, and a channel to it.
class Rpc {
 public:
  explicit Rpc(int64_t most_calls = 1000)
      : Rpc(service::RpcLimits{.calls = most_calls}) {}
  explicit Rpc(service::RpcLimits limits) : server(limits) {}

  void Start(int max_message = 1 << 20) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(max_message);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    ASSERT_TRUE(server.Start(&builder));
    ASSERT_GT(port, 0);
    channel = NewChannel();
  }
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                     grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  int port = 0;
  std::shared_ptr<grpc::Channel> channel{};
  RpcServer server;  // Last: its handlers may use the test's variables.
};

// One call of a client with one request; it runs from the beginning.
class Client {
 public:
  Client(const std::shared_ptr<grpc::Channel>& channel,
         const std::string& method, const std::string& request,
         milliseconds deadline = seconds(20)) {
    context_.set_deadline(std::chrono::system_clock::now() + deadline);
    grpc::GenericStub stub(channel);
    call_ = stub.PrepareUnaryCall(&context_, method, Bytes(request), &queue_);
    call_->StartCall();
    call_->Finish(&answer_, &status_, nullptr);
  }
  ~Client() {
    context_.TryCancel();
    Wait();
    queue_.Shutdown();
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const grpc::Status& Wait() {
    void* tag = nullptr;
    bool ok = false;
    if (!done_) queue_.Next(&tag, &ok);
    done_ = true;
    return status_;
  }
  std::string answer() {
    return Wait().ok() ? Text(answer_) : Wait().error_message();
  }
  grpc::ClientContext& context() { return context_; }

 private:
  grpc::CompletionQueue queue_{};
  grpc::ClientContext context_{};
  grpc::ByteBuffer answer_{};
  grpc::Status status_{};
  bool done_ = false;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call_{};
};

// A client's stream, one step at a time.
class Stream {
 public:
  Stream(const std::shared_ptr<grpc::Channel>& channel,
         const std::string& method) {
    context_.set_deadline(std::chrono::system_clock::now() + seconds(20));
    grpc::GenericStub stub(channel);
    call_ = stub.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~Stream() {
    context_.TryCancel();
    queue_.Shutdown();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool Write(const std::string& text) {
    call_->Write(Bytes(text), nullptr);
    return Next();
  }
  bool WritesDone() {
    call_->WritesDone(nullptr);
    return Next();
  }
  std::optional<std::string> Read() {
    grpc::ByteBuffer bytes;
    call_->Read(&bytes, nullptr);
    if (!Next()) return std::nullopt;
    return Text(bytes);
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  grpc::CompletionQueue queue_{};
  grpc::ClientContext context_{};
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_{};
};

inline int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return -1;
  return fd;
}

// HTTP/2 by hand: what a well-behaved client cannot be made to send.
inline std::string Frame(char type, char flags, const std::string& payload,
                         char stream = 1) {
  std::string frame(3, '\0');
  for (size_t i = 0; i < 3; ++i) {
    frame[i] = static_cast<char>(payload.size() >> (16 - 8 * i));
  }
  return frame + type + flags + std::string(3, '\0') + stream + payload;
}

inline std::string Preface() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, "", 0);
}

// A call's headers, behind the preface. `timeout` as gRPC has it, such as 50m
// for 50 ms; empty: none.
inline std::string BeginCall(const std::string& path, char stream = 1,
                             const std::string& timeout = "") {
  const auto literal = [](const std::string& text) {
    return static_cast<char>(text.size()) + text;
  };
  std::string headers = "\x83\x86";  // :method POST, :scheme http
  headers += '\x04' + literal(path);
  headers += '\x01' + literal("localhost");  // :authority
  headers += '\0' + literal("content-type") + literal("application/grpc");
  headers += '\0' + literal("te") + literal("trailers");
  if (!timeout.empty()) {
    headers += '\0' + literal("grpc-timeout") + literal(timeout);
  }
  return Frame(1, 4, headers, stream);
}

// Its one request, of less than 256 bytes.
inline std::string Request(const std::string& text, char stream = 1) {
  std::string message(5, '\0');
  message[4] = static_cast<char>(text.size());
  return Frame(0, 1, message + text, stream);
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SERVICE_RPC_BY_HAND_H_
