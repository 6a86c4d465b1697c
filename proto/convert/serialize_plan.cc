#include "proto/convert/serialize_plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/wire_format_lite.h>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "proto/convert/plan_proto.h"

namespace pipeloom::convert {
namespace {

using ::google::protobuf::io::CodedInputStream;
using ::google::protobuf::io::CodedOutputStream;
using ::google::protobuf::io::StringOutputStream;
using Wire = ::google::protobuf::internal::WireFormatLite;

// Encoding of ExecutionPlan.format: tag, length, text.
constexpr absl::string_view kBeginning("\x0a\x0dpipeloom.plan");

// Counts the fields of a plan and, inside its graph and programs, their fields:
// an empty task takes 2 bytes of a file but 100 bytes of memory. Returns false
// if the bytes are not a message or there are more than *left fields.
bool CountFields(CodedInputStream* input, bool descend, int64_t* left) {
  while (const uint32_t tag = input->ReadTag()) {
    if (--*left < 0) return false;
    const int field = Wire::GetTagFieldNumber(tag);
    const bool inside =
        descend &&
        Wire::GetTagWireType(tag) == Wire::WIRETYPE_LENGTH_DELIMITED &&
        (field == v1::ExecutionPlan::kGraphFieldNumber ||
         field == v1::ExecutionPlan::kProgramsFieldNumber);
    if (!inside) {
      if (!Wire::SkipField(input, tag)) return false;
      continue;
    }
    const CodedInputStream::Limit limit = input->ReadLengthAndPushLimit();
    if (!CountFields(input, /*descend=*/false, left)) return false;
    if (!input->CheckEntireMessageConsumedAndPopLimit(limit)) return false;
  }
  return true;
}

}  // namespace

std::string SerializePlan(const ExecutionPlan& plan) {
  std::string bytes;
  StringOutputStream stream(&bytes);
  CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  ToProto(plan).SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::StatusOr<ExecutionPlan> ParsePlan(absl::string_view bytes) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "not a Pipeloom plan, or cut off: %s (%d bytes)", why, bytes.size()));
  };
  if (bytes.empty()) return refuse("it is empty");
  if (!absl::StartsWith(bytes, kBeginning)) {
    return refuse("it does not begin with the format \"pipeloom.plan\"");
  }
  if (bytes.size() > static_cast<size_t>(kMaxPlanBytes)) {
    return refuse(absl::StrFormat("it is over %d bytes", kMaxPlanBytes));
  }
  const int size = static_cast<int>(bytes.size());
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()), size);
  int64_t left = kMaxPlanItems;
  const bool counted = CountFields(&input, /*descend=*/true, &left);
  if (left < 0) {
    return refuse(absl::StrFormat("it has over %d items", kMaxPlanItems));
  }
  // Keeps a failed parse from writing to stderr.
  const google::protobuf::LogSilencer silencer;
  v1::ExecutionPlan proto;
  if (!counted || !proto.ParseFromArray(bytes.data(), size)) {
    return refuse("it does not parse as pipeloom.v1.ExecutionPlan");
  }
  absl::StatusOr<ExecutionPlan> plan = FromProto(proto);
  if (!plan.ok()) return refuse(std::string(plan.status().message()));
  return plan;
}

}  // namespace pipeloom::convert
