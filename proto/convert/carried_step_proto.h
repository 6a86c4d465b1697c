// Conversion of CarriedStep to and from pipeloom.v1.CarriedStep.
#ifndef PIPELOOM_PROTO_CONVERT_CARRIED_STEP_PROTO_H_
#define PIPELOOM_PROTO_CONVERT_CARRIED_STEP_PROTO_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/carried_step.h"
#include "pipeloom/v1/carried_step.pb.h"

namespace pipeloom::convert {

// Converts lessons to a message.
v1::CarriedStep ToProto(const CarriedStep& carried);
v1::CarriedSteps ToProto(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps);

// Converts a message. InvalidArgument names the field and value: numbers that
// are negative or not finite, lists of one microbatch that differ in length, or
// tasks that are out of order.
absl::StatusOr<CarriedStep> FromProto(const v1::CarriedStep& proto);
absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> FromProto(
    const v1::CarriedSteps& proto);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_CARRIED_STEP_PROTO_H_
