// Conversion of messages from and to the bytes of calls.
#ifndef PIPELOOM_SERVICE_RPC_RPC_MESSAGES_H_
#define PIPELOOM_SERVICE_RPC_RPC_MESSAGES_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace pipeloom::service {

// Parses a message. InvalidArgument: the bytes are not such a message.
template <typename Message>
absl::StatusOr<Message> ReadMessage(const grpc::ByteBuffer& bytes) {
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

inline grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_RPC_MESSAGES_H_
