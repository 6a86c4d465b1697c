// Any bytes as a task graph: an error, or a graph that prints and comes back
// equal.
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "formats/job/spec_loader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto loaded = pipeloom::formats::ParseTaskGraph(text, "fuzz.json");
  if (!loaded.ok()) return 0;
  PIPELOOM_CHECK(loaded->external_id.size() == loaded->graph.num_tasks());
  const auto again = pipeloom::formats::ParseTaskGraph(
      pipeloom::formats::PrintTaskGraph(loaded->graph), "printed.json");
  PIPELOOM_CHECK(again.ok());
  PIPELOOM_CHECK(again->graph == loaded->graph);
  return 0;
}
