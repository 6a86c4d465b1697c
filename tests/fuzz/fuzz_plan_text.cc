// Any text: ParseExecutionPlan gives an error or a plan whose text parses back
// equal, and checking it never crashes.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ir/execution_plan.h"
#include "ir/text_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto plan = pipeloom::ParseExecutionPlan(text);
  if (!plan.ok()) return 0;
  const auto again = pipeloom::ParseExecutionPlan(pipeloom::ToString(*plan));
  PIPELOOM_CHECK(again.ok());
  PIPELOOM_CHECK(*again == *plan || std::isnan(plan->model_flops.count) ||
                 std::isnan(plan->peak_flops_per_second));
  (void)pipeloom::ValidateExecutionPlan(*plan);
  return 0;
}
