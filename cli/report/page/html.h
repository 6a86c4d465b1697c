// Parts that all HTML pages share: escaped text, tables, the beginning with
// title and figures, and the end with the script. A page is one file that needs
// no network (a content security policy forbids it) and follows the reader's
// light or dark setting.
#ifndef PIPELOOM_CLI_REPORT_PAGE_HTML_H_
#define PIPELOOM_CLI_REPORT_PAGE_HTML_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/console/table.h"

namespace pipeloom::cli {

// Escapes `text` for HTML text and quoted attributes.
std::string EscapeHtml(absl::string_view text);

// Appends the table from its row `first` to before its row `last` (0 is the
// header, which is always there), on a card that scrolls sideways.
void AppendTable(const Table& table, std::string* html);
void AppendTableRows(const Table& table, size_t first, size_t last,
                     std::string* html);

// A number at the top of a page.
struct PageFigure {
  std::string label{};
  std::string value{};
  std::string note{};  // Small text below the value; may be empty.
};

struct PageStart {
  std::string title{};
  std::string subtitle{};
  std::string command{};  // The command that made the page; empty: not shown.
  std::vector<PageFigure> figures{};
};
void AppendPageStart(const PageStart& page, std::string* html);

// `json`: the data of the script (cli/report/page/page.js), an object with keys
// `command` and `steps`.
void AppendPageEnd(const std::vector<std::string>& notes,
                   const std::string& json, std::string* html);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_PAGE_HTML_H_
