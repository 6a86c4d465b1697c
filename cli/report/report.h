// One self-contained HTML page about planned steps: figures, tables, each
// step's pipeline on a canvas that zooms and pans, why every task started when
// it did, the critical path, to what each rank lost its idle time, and the
// memory of each rank. It needs no network (a content security policy forbids
// it) and follows the reader's light or dark setting. docs/report.md.
#ifndef PIPELOOM_CLI_REPORT_REPORT_H_
#define PIPELOOM_CLI_REPORT_REPORT_H_

#include <string>
#include <vector>

#include "base/units.h"
#include "cli/console/table.h"
#include "cli/report/report_step.h"

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
  using Step = ReportStep;
  // One point a configuration; the better is to the left and below.
  struct Scatter {
    struct Point {
      std::string label{};
      double x = 0;
      double y = 0;
      bool best = false;  // Nothing is better in both.
    };
    std::string title{};
    std::string x_label{};
    std::string y_label{};
    std::vector<Point> points{};
  };
  std::string title{};
  std::string subtitle{};
  std::string command{};  // That made the page; empty: not shown.
  std::vector<Figure> figures{};
  std::vector<Scatter> scatters{};
  std::vector<NamedTable> tables{};
  std::vector<Step> steps{};
  // All drawings show this much time, so that they compare; 0: each its own.
  Duration common_axis{};
  std::vector<std::string> notes{};
};

// O(spans log spans + memory steps) time; about 100 bytes a task.
std::string ReportHtml(const Report& report);

// `text` safe inside HTML text and quoted attributes.
std::string EscapeHtml(absl::string_view text);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_REPORT_H_
