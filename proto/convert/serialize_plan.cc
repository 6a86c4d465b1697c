#include "proto/convert/serialize_plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <limits>

#include "absl/strings/str_format.h"
#include "proto/convert/plan_proto.h"

namespace pipeloom::convert {

std::string SerializePlan(const ExecutionPlan& plan) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
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
  if (bytes.size() > std::numeric_limits<int>::max()) {
    return refuse("it is over 2 GiB");
  }
  v1::ExecutionPlan proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return refuse("it does not parse as pipeloom.v1.ExecutionPlan");
  }
  absl::StatusOr<ExecutionPlan> plan = FromProto(proto);
  if (!plan.ok()) return refuse(std::string(plan.status().message()));
  return plan;
}

}  // namespace pipeloom::convert
