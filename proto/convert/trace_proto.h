// Conversion of StepTrace to and from pipeloom.v1.StepTrace.
#ifndef PIPELOOM_PROTO_CONVERT_TRACE_PROTO_H_
#define PIPELOOM_PROTO_CONVERT_TRACE_PROTO_H_

#include "absl/status/statusor.h"
#include "ir/plan/step_trace.h"
#include "pipeloom/v1/trace.pb.h"

namespace pipeloom::convert {

// Converts a trace to a message.
v1::StepTrace ToProto(const StepTrace& trace);

// Converts a message. InvalidArgument names the field and value: a rank out of
// range, an unknown stream, kind or item, a span that ends before it starts, or
// one without the task or edge that its kind needs.
absl::StatusOr<StepTrace> FromProto(const v1::StepTrace& proto);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_TRACE_PROTO_H_
