// The memory that a protobuf message takes when it is parsed, found from its
// bytes. A sample without content has two bytes on the wire and some hundred in
// memory, so a limit on bytes says little.
#ifndef PIPELOOM_SERVICE_RPC_MESSAGE_SIZE_H_
#define PIPELOOM_SERVICE_RPC_MESSAGE_SIZE_H_

#include <google/protobuf/message.h>

#include <cstdint>

#include "absl/strings/string_view.h"

namespace pipeloom::service {

// Returns about how many bytes of memory a message of the type of `prototype`
// takes when it is parsed from `wire`. Stops counting above `most`. Bytes that
// are not such a message count as far as they can be read. O(bytes), without
// allocating memory; nested messages count up to 100 levels, as for the parser.
int64_t ParsedSize(const google::protobuf::Message& prototype,
                   absl::string_view wire, int64_t most);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_MESSAGE_SIZE_H_
