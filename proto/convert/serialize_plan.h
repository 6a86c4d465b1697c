// Plans as bytes: what plan.pb files hold and the service sends.
#ifndef PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_
#define PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::convert {

// What ParsePlan reads at most: bytes, and ranks, modules, tasks, edges,
// programs and instructions together. A million tasks fit.
inline constexpr int64_t kMaxPlanBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxPlanItems = int64_t{16} << 20;

// The same plan gives the same bytes. REQUIRES: names are UTF-8.
std::string SerializePlan(const ExecutionPlan& plan);

// InvalidArgument says that the bytes are no plan, were cut off or changed, or
// that the plan is too large; that is found out before memory is spent on it.
absl::StatusOr<ExecutionPlan> ParsePlan(absl::string_view bytes);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_
