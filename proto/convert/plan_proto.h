// Conversion of ExecutionPlan to and from pipeloom.v1.ExecutionPlan.
#ifndef PIPELOOM_PROTO_CONVERT_PLAN_PROTO_H_
#define PIPELOOM_PROTO_CONVERT_PLAN_PROTO_H_

#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"
#include "pipeloom/v1/plan.pb.h"

namespace pipeloom::convert {

// Convert values to messages; that of a plan has format, version and checksum
// filled in. REQUIRES: names are UTF-8.
v1::ExecutionPlan ToProto(const ExecutionPlan& plan);
v1::Program ToProto(const std::vector<Instruction>& program);
v1::LossShare ToProto(const LossShare& share);
v1::PaddedShape ToProto(const PaddedShape& shape);
v1::LossTotal ToProto(const LossTotal& total);

// Converts a message. InvalidArgument names the field and value: another format
// or version, a number that is negative or not finite, an index out of range,
// an instruction that is not set, or a checksum that differs from that of the
// content. Does not check that the plan can run, as ValidateExecutionPlan does.
absl::StatusOr<ExecutionPlan> FromProto(const v1::ExecutionPlan& proto);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_PLAN_PROTO_H_
