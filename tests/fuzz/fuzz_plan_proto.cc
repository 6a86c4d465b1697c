// Any bytes: ParsePlan gives an error or a plan that serialises to one that
// parses back equal, and checking it never crashes.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ir/plan/execution_plan.h"
#include "proto/convert/serialize_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto plan = pipeloom::convert::ParsePlan(bytes);
  if (!plan.ok()) return 0;
  const auto again =
      pipeloom::convert::ParsePlan(pipeloom::convert::SerializePlan(*plan));
  PIPELOOM_CHECK(again.ok());
  PIPELOOM_CHECK(*again == *plan);
  (void)pipeloom::ValidateExecutionPlan(*plan);
  return 0;
}
