#include "service/rpc/message_size.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <map>

namespace pipeloom::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;
constexpr int64_t kPointer = 8;  // A list's pointer to an element.
constexpr int64_t kString = 40;  // A string object and its pointer.

// Counts one message, whose bytes end at the stream's limit.
class Counter {
 public:
  explicit Counter(int64_t most) : most_(most) {}

  // Returns false when the count is above the most, or at bytes that cannot be
  // read.
  bool Count(const Message& prototype, CodedInputStream* in, int depth) {
    total_ += SizeOf(prototype);
    if (total_ > most_ || depth > kMaxDepth) return false;
    while (const uint32_t tag = in->ReadTag()) {
      if (!Field(prototype, tag, in, depth)) return false;
    }
    return in->ConsumedEntireMessage();
  }
  int64_t total() const { return total_; }

 private:
  // Returns the memory of a message without content. Batches have millions of
  // messages of a few types.
  int64_t SizeOf(const Message& prototype) {
    int64_t& size = sizes_[prototype.GetDescriptor()];
    if (size == 0) size = static_cast<int64_t>(prototype.SpaceUsedLong());
    return size;
  }

  bool Field(const Message& prototype, uint32_t tag, CodedInputStream* in,
             int depth) {
    const auto type = WireFormatLite::GetTagWireType(tag);
    if (type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      total_ += kPointer;  // As an element of a list; others are smaller.
      return total_ <= most_ && WireFormatLite::SkipField(in, tag);
    }
    uint32_t length = 0;
    if (!in->ReadVarint32(&length)) return false;
    const FieldDescriptor* field = prototype.GetDescriptor()->FindFieldByNumber(
        WireFormatLite::GetTagFieldNumber(tag));
    if (field != nullptr &&
        field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      total_ += kPointer;
      const Message* inner =
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(
              field->message_type());
      const auto limit = in->PushLimit(static_cast<int>(length));
      const bool whole = Count(*inner, in, depth + 1);
      in->PopLimit(limit);
      return whole;
    }
    const bool packed = field != nullptr && field->is_packable();
    // An element of a packed list has at least one byte and at most eight in
    // memory.
    total_ += packed ? kPointer * int64_t{length} : kString + int64_t{length};
    return total_ <= most_ && in->Skip(static_cast<int>(length));
  }

  const int64_t most_;
  int64_t total_ = 0;
  std::map<const google::protobuf::Descriptor*, int64_t> sizes_{};
};

}  // namespace

int64_t ParsedSize(const Message& prototype, absl::string_view wire,
                   int64_t most) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(wire.data()),
                      static_cast<int>(wire.size()));
  Counter counter(most);
  counter.Count(prototype, &in, 0);
  return counter.total();
}

}  // namespace pipeloom::service
