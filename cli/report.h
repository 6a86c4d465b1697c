// One self-contained HTML page about planned steps: figures, tables, each
// step's pipeline drawn as SVG, and the memory of each rank. It needs no
// network and follows the reader's light or dark setting.
#ifndef PIPELOOM_CLI_REPORT_H_
#define PIPELOOM_CLI_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "cli/table.h"
#include "ir/execution_plan.h"
#include "ir/step_trace.h"

namespace pipeloom::cli {

struct Report {
  struct Figure {
    std::string label{};
    std::string value{};
    std::string note{};  // Small, below the value; may be empty.
  };
  struct NamedTable {
    std::string title{};
    Table table;
  };
  // Drawn with memory and a table of its ranks. Pointers must outlive the call.
  struct Step {
    std::string title{};
    const ExecutionPlan* plan = nullptr;
    const StepTrace* trace = nullptr;
  };
  std::string title{};
  std::string subtitle{};
  std::vector<Figure> figures{};
  std::vector<NamedTable> tables{};
  std::vector<Step> steps{};
  // All drawings show this much time, so that they compare; 0: each its own.
  Duration common_axis{};
  std::vector<std::string> notes{};
};

// O(spans + memory steps). The size of a drawing is bounded by what can be
// seen of it, not by the number of tasks.
std::string ReportHtml(const Report& report);

// `text` safe inside HTML text and quoted attributes.
std::string EscapeHtml(absl::string_view text);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_H_
