// A self-contained HTML page about planned steps: figures, tables, each step's
// pipeline on a canvas that zooms and pans, the reason for every task's start,
// the critical path, the causes of each rank's idle time, and the memory of
// each rank. It needs no network (a content security policy forbids it) and
// follows the reader's light or dark setting. See docs/report.md.
#ifndef PIPELOOM_CLI_REPORT_REPORT_H_
#define PIPELOOM_CLI_REPORT_REPORT_H_

#include <string>
#include <vector>

#include "base/units.h"
#include "cli/console/table.h"
#include "cli/report/page/html.h"
#include "cli/report/page/plots.h"
#include "cli/report/report_step.h"

namespace pipeloom::cli {

struct Report {
  using Figure = PageFigure;
  using Scatter = ScatterPlot;
  struct NamedTable {
    std::string title{};
    Table table;
  };
  using Step = ReportStep;
  std::string title{};
  std::string subtitle{};
  std::string command{};  // The command that made the page; empty: not shown.
  std::vector<Figure> figures{};
  std::vector<Scatter> scatters{};
  std::vector<NamedTable> tables{};
  std::vector<Step> steps{};
  // The time that all drawings show, so that they can be compared; 0: each
  // shows its own step time.
  Duration common_axis{};
  std::vector<std::string> notes{};
};

// Returns the page. Takes O(spans log spans + memory steps) time; its size is
// about 100 bytes per task.
std::string ReportHtml(const Report& report);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_REPORT_H_
