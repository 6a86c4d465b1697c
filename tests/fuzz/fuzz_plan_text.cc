// Any text: each parser of a text form gives an error or a value whose text
// parses back equal. A plan also survives its binary form, and checking it
// never crashes.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ir/plan/execution_plan.h"
#include "ir/text/text_format.h"
#include "proto/convert/serialize_plan.h"

namespace {

template <typename T>
void CheckRoundTrip(const T& value,
                    absl::StatusOr<T> (*parse)(absl::string_view)) {
  const auto again = parse(pipeloom::ToString(value));
  PIPELOOM_CHECK(again.ok());
  PIPELOOM_CHECK(*again == value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto plan = pipeloom::ParseExecutionPlan(text); plan.ok()) {
    CheckRoundTrip(*plan, pipeloom::ParseExecutionPlan);
    const auto from_bytes =
        pipeloom::convert::ParsePlan(pipeloom::convert::SerializePlan(*plan));
    PIPELOOM_CHECK(from_bytes.ok());
    PIPELOOM_CHECK(*from_bytes == *plan);
    (void)pipeloom::ValidateExecutionPlan(*plan);
  }
  if (const auto schedule = pipeloom::ParseSchedule(text); schedule.ok()) {
    CheckRoundTrip(*schedule, pipeloom::ParseSchedule);
  }
  if (const auto trace = pipeloom::ParseStepTrace(text); trace.ok()) {
    CheckRoundTrip(*trace, pipeloom::ParseStepTrace);
  }
  return 0;
}
