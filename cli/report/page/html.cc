#include "cli/report/page/html.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/report/page/assets.h"

namespace pipeloom::cli {
namespace {

// Escapes JSON so that it cannot end the script element that holds it.
std::string ForScript(const std::string& json) {
  return absl::StrReplaceAll(json, {{"<", "\\u003c"}, {"&", "\\u0026"}});
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"},
                                    {"<", "&lt;"},
                                    {">", "&gt;"},
                                    {"\"", "&quot;"},
                                    {"'", "&#39;"}});
}

void AppendTable(const Table& table, std::string* html) {
  AppendTableRows(table, 1, table.rows().size(), html);
}

void AppendTableRows(const Table& table, size_t first, size_t last,
                     std::string* html) {
  absl::StrAppend(html, "<div class=\"card scroll\"><table>\n");
  const size_t columns = table.rows()[0].size();
  for (size_t r = 0; r < last; ++r) {
    if (r > 0 && r < first) continue;
    const std::vector<std::string>& row = table.rows()[r];
    absl::StrAppend(html, r == 0 ? "<thead><tr>" : "<tr>");
    for (size_t c = 0; c < row.size(); ++c) {
      const bool reason = row.size() < columns && c + 1 == row.size();
      const char* tag = r == 0 || c == 0 ? "th" : "td";
      std::string attributes = r == 0   ? " scope=\"col\""
                               : c == 0 ? " scope=\"row\""
                                        : "";
      if (reason) {
        absl::StrAppend(&attributes, " class=\"l why\" colspan=\"", columns - c,
                        "\"");
      } else if (static_cast<int>(c) < table.left_columns()) {
        absl::StrAppend(&attributes, " class=\"l\"");
      }
      absl::StrAppend(html, "<", tag, attributes, ">", EscapeHtml(row[c]), "</",
                      tag, ">");
    }
    absl::StrAppend(html, r == 0 ? "</tr></thead><tbody>\n" : "</tr>\n");
  }
  absl::StrAppend(html, "</tbody></table></div>\n");
}

void AppendPageStart(const PageStart& page, std::string* html) {
  absl::StrAppend(
      html,
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'; img-src data:\">\n<title>",
      EscapeHtml(page.title), "</title>\n<style>\n", kReportStyle,
      "</style>\n</head>\n<body>\n<main>\n<div class=\"top\"><div><h1>",
      EscapeHtml(page.title), "</h1>\n<p class=\"soft\">",
      EscapeHtml(page.subtitle), "</p></div>\n<div class=\"actions\">");
  if (!page.command.empty()) {
    absl::StrAppend(html,
                    "<button type=\"button\" id=\"copy\">Copy command"
                    "</button>");
  }
  absl::StrAppend(html,
                  "<button type=\"button\" id=\"theme\" aria-label=\"Light or "
                  "dark\">Light or dark</button></div></div>\n");
  if (!page.command.empty()) {
    absl::StrAppend(html, "<code class=\"command\">", EscapeHtml(page.command),
                    "</code>\n");
  }
  if (!page.figures.empty()) {
    absl::StrAppend(html, "<div class=\"figures\">\n");
    for (const PageFigure& figure : page.figures) {
      absl::StrAppend(html, "<div class=\"figure\"><span>",
                      EscapeHtml(figure.label), "</span><b>",
                      EscapeHtml(figure.value), "</b>");
      if (!figure.note.empty()) {
        absl::StrAppend(html, "<small>", EscapeHtml(figure.note), "</small>");
      }
      absl::StrAppend(html, "</div>\n");
    }
    absl::StrAppend(html, "</div>\n");
  }
}

void AppendPageEnd(const std::vector<std::string>& notes,
                   const std::string& json, std::string* html) {
  absl::StrAppend(html, "<footer>\n");
  for (const std::string& note : notes) {
    absl::StrAppend(html, "<p>", EscapeHtml(note), "</p>\n");
  }
  absl::StrAppend(html, "</footer>\n</main>\n<script type=",
                  "\"application/json\" id=\"data\">", ForScript(json),
                  "</script>\n<script>\n", kReportScript,
                  "</script>\n</body>\n</html>\n");
}

}  // namespace pipeloom::cli
