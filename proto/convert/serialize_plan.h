// Plans as bytes, in plan.pb files and in messages of the service.
#ifndef PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_
#define PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::convert {

// Limits of ParsePlan: bytes, and the sum of ranks, modules, tasks, edges,
// programs and instructions. A million tasks fit.
inline constexpr int64_t kMaxPlanBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxPlanItems = int64_t{16} << 20;

// Serializes a plan. Equal plans give equal bytes. REQUIRES: names are UTF-8.
std::string SerializePlan(const ExecutionPlan& plan);

// Parses a plan. InvalidArgument says that the bytes are not a plan, were cut
// off or changed, or that the plan is too large; this is found before memory is
// allocated for it.
absl::StatusOr<ExecutionPlan> ParsePlan(absl::string_view bytes);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_SERIALIZE_PLAN_H_
