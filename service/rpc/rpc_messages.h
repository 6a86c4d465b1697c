// Conversion of messages from and to the bytes of calls.
#ifndef PIPELOOM_SERVICE_RPC_RPC_MESSAGES_H_
#define PIPELOOM_SERVICE_RPC_RPC_MESSAGES_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "service/jobs/job_errors.h"
#include "service/rpc/message_size.h"
#include "service/rpc/rpc_server.h"

namespace pipeloom::service {

// A parsed request, with the memory that is reserved for it as long as it
// lives.
template <typename Message>
struct ParsedRequest {
  std::unique_ptr<RequestMemory> memory{};
  Message message{};  // Destroyed first.
  const Message* operator->() const { return &message; }
  const Message& operator*() const { return message; }
};

// Parses a message of a call, once the memory that it takes is reserved.
// InvalidArgument: the bytes are not such a message. ResourceExhausted: it, or
// all requests and unread answers together, would take too much memory.
template <typename Message>
absl::StatusOr<ParsedRequest<Message>> ReadMessage(
    RpcCall* call, const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  ParsedRequest<Message> request;
  const bool whole =
      bytes.TrySingleSlice(&slice).ok() || bytes.DumpToSingleSlice(&slice).ok();
  if (whole) {
    const absl::string_view wire(reinterpret_cast<const char*>(slice.begin()),
                                 slice.size());
    absl::StatusOr<std::unique_ptr<RequestMemory>> memory =
        call->ReserveForRequest(
            ParsedSize(Message::default_instance(), wire, call->most_memory()));
    if (!memory.ok()) return memory.status();
    request.memory = *std::move(memory);
    if (request.message.ParseFromArray(slice.begin(),
                                       static_cast<int>(slice.size()))) {
      return request;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the request is no ", Message::descriptor()->name()));
}

inline grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_RPC_MESSAGES_H_
