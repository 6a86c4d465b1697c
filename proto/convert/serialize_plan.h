// Plans as bytes: what plan.pb files hold and the service sends.
#ifndef PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_
#define PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/execution_plan.h"

namespace pipeloom::convert {

// The same plan gives the same bytes.
std::string SerializePlan(const ExecutionPlan& plan);

// InvalidArgument says that the bytes are no plan, were cut off or changed.
absl::StatusOr<ExecutionPlan> ParsePlan(absl::string_view bytes);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_
