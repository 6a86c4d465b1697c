// Any bytes as a schedule file of another tool: an error, or a table that
// prints and comes back equal and that, if it passes its check, makes a
// schedule. The first byte chooses the format.
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "adapters/action_table.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_layout.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "base/check.h"

namespace {

using namespace pipeloom::adapters;

void CheckSchedule(const ActionTable& table) {
  TableShape shape;
  if (!CheckTable(table, &shape).ok()) return;
  const auto made = ScheduleOf(table, {}, "fuzz");
  PIPELOOM_CHECK(made.ok());
  PIPELOOM_CHECK(pipeloom::TimeSchedule(made->graph, made->order).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1,
                               size - 1);
  switch (data[0] % 6) {
    case 0:
    case 1:
    case 2: {
      const auto table =
          ParseTorchCsv(text, static_cast<TorchDialect>(data[0] % 6));
      if (!table.ok()) return 0;
      const auto again =
          ParseTorchCsv(PrintTorchCsv(*table), TorchDialect::k26);
      PIPELOOM_CHECK(again.ok() && *again == *table);
      CheckSchedule(*table);
      return 0;
    }
    case 3: {
      const auto order = ParseMegatronOrder(text);
      if (!order.ok()) return 0;
      const auto again = ParseMegatronOrder(PrintMegatronOrder(*order));
      PIPELOOM_CHECK(again.ok() && *again == *order);
      CheckSchedule(FromMegatronOrder(*order));
      return 0;
    }
    case 4: {
      const auto steps = ParseDeepSpeed(text);
      if (!steps.ok()) return 0;
      const auto again = ParseDeepSpeed(PrintDeepSpeed(*steps));
      PIPELOOM_CHECK(again.ok() && *again == *steps);
      const auto table = FromDeepSpeed(*steps);
      if (table.ok()) CheckSchedule(*table);
      return 0;
    }
    default: {
      const auto stages = ParseMegatronLayout(text, 2);
      if (!stages.ok()) return 0;
      const auto again = ParseMegatronLayout(PrintMegatronLayout(*stages), 2);
      PIPELOOM_CHECK(again.ok() && *again == *stages);
      return 0;
    }
  }
}
