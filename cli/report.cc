#include "cli/report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report_drawing.h"
#include "cli/report_style.h"
#include "cli/trace_summary.h"

namespace pipeloom::cli {
namespace {

constexpr int kWidth = 1200;
// Tasks a rank above which a wider drawing is offered, and its width.
constexpr int kCrowded = 150;
constexpr int kWideWidth = 4800;
constexpr int32_t kMostMemoryDrawings = 64;

void AppendTable(const Table& table, std::string* html) {
  absl::StrAppend(html, "<div class=\"card\"><table>\n");
  const size_t columns = table.rows()[0].size();
  for (size_t r = 0; r < table.rows().size(); ++r) {
    const std::vector<std::string>& row = table.rows()[r];
    const char* tag = r == 0 ? "th" : "td";
    absl::StrAppend(html, "<tr>");
    for (size_t c = 0; c < row.size(); ++c) {
      const bool reason = row.size() < columns && c + 1 == row.size();
      std::string attributes;
      if (reason) {
        attributes =
            absl::StrCat(" class=\"l why\" colspan=\"", columns - c, "\"");
      } else if (static_cast<int>(c) < table.left_columns()) {
        attributes = " class=\"l\"";
      }
      absl::StrAppend(html, "<", tag, attributes, ">", EscapeHtml(row[c]), "</",
                      tag, ">");
    }
    absl::StrAppend(html, "</tr>\n");
  }
  absl::StrAppend(html, "</table></div>\n");
}

Table RankTable(const StageGraph& graph, const TraceSummary& summary,
                Duration step_time) {
  Table table({"rank", "tasks", "busy", "warm-up", "stalls", "drain",
               "epilogue", "peak memory", "of it activations", "limit"});
  const auto share = [&](Duration d) {
    return step_time > kZero
               ? FormatPercent(ToSeconds(d) / ToSeconds(step_time))
               : std::string("-");
  };
  for (const RankId r : graph.rank_ids()) {
    const RankSummary& rank = summary.ranks[r];
    const Bytes limit = graph.rank(r).memory.limit;
    table.AddRow(
        {absl::StrCat("rank ", r.value()), absl::StrCat(rank.num_tasks),
         share(rank.busy()), share(rank.warm_up), share(rank.stalls),
         share(rank.drain), share(rank.epilogue), FormatBytes(rank.peak.total),
         FormatBytes(
             rank.peak.items[static_cast<int>(MemoryItem::kActivations)]),
         limit > Bytes(0) ? FormatBytes(limit) : "none"});
  }
  return table;
}

void AppendStep(const Report::Step& step, Duration axis, std::string* html) {
  const StageGraph& graph = step.plan->graph;
  const TraceSummary summary = Summarize(graph, *step.trace);
  absl::StrAppend(
      html, "<h2>", EscapeHtml(step.title), "</h2>\n", "<div class=\"card\">",
      TimelineSvg(graph, *step.trace, kWidth, axis), TimelineLegend(graph));
  if (graph.num_tasks() > kCrowded * std::max(1, graph.num_ranks())) {
    absl::StrAppendFormat(
        html,
        "<details><summary>Four times as wide</summary><div class=\"scroll\">"
        "<div style=\"width:%dpx\">%s</div></div></details>",
        kWideWidth, TimelineSvg(graph, *step.trace, kWideWidth, axis));
  }
  absl::StrAppend(html, "</div>\n<h3>Ranks</h3>\n");
  AppendTable(RankTable(graph, summary, step.trace->step_time()), html);
  absl::StrAppend(html, "<h3>Memory of one GPU of each rank</h3>\n",
                  "<div class=\"memory\">\n");
  for (const RankId r : graph.rank_ids()) {
    if (r.value() >= kMostMemoryDrawings) break;
    const MemoryPeak& peak = summary.ranks[r].peak;
    const Bytes limit = graph.rank(r).memory.limit;
    std::string items;
    for (int i = 0; i < kNumMemoryItems; ++i) {
      if (peak.items[i] == Bytes(0)) continue;
      absl::StrAppend(&items, items.empty() ? "" : ", ",
                      MemoryItemName(static_cast<MemoryItem>(i)), " ",
                      FormatBytes(peak.items[i]));
    }
    absl::StrAppend(
        html, "<div class=\"card\"><h3>rank ", r.value(), ": peak ",
        FormatBytes(peak.total),
        limit > Bytes(0) ? absl::StrCat(" of ", FormatBytes(limit)) : "",
        "</h3>", MemorySvg(graph, *step.trace, r), "<small class=\"soft\">at ",
        FormatDuration(peak.at - kStepStart), ": ", items, "</small></div>\n");
  }
  absl::StrAppend(html, "</div>\n", MemoryLegend());
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string ReportHtml(const Report& report) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>",
      EscapeHtml(report.title), "</title>\n<style>", kReportStyle,
      "</style>\n</head>\n<body>\n<main>\n");
  size_t num_modules = 0;
  for (const Report::Step& step : report.steps) {
    num_modules = std::max(num_modules, step.plan->graph.module_names().size());
  }
  absl::StrAppend(&html, PatternsSvg(static_cast<int>(num_modules)), "<h1>",
                  EscapeHtml(report.title), "</h1>\n<p class=\"soft\">",
                  EscapeHtml(report.subtitle), "</p>\n");
  if (!report.figures.empty()) {
    absl::StrAppend(&html, "<div class=\"figures\">\n");
    for (const Report::Figure& figure : report.figures) {
      absl::StrAppend(&html, "<div class=\"figure\"><span>",
                      EscapeHtml(figure.label), "</span><b>",
                      EscapeHtml(figure.value), "</b>");
      if (!figure.note.empty()) {
        absl::StrAppend(&html, "<small>", EscapeHtml(figure.note), "</small>");
      }
      absl::StrAppend(&html, "</div>\n");
    }
    absl::StrAppend(&html, "</div>\n");
  }
  for (const Report::NamedTable& named : report.tables) {
    absl::StrAppend(&html, "<h2>", EscapeHtml(named.title), "</h2>\n");
    AppendTable(named.table, &html);
  }
  for (const Report::Step& step : report.steps) {
    AppendStep(step, report.common_axis, &html);
  }
  absl::StrAppend(&html, "<footer>\n");
  for (const std::string& note : report.notes) {
    absl::StrAppend(&html, "<p>", EscapeHtml(note), "</p>\n");
  }
  absl::StrAppend(&html, "</footer>\n</main>\n</body>\n</html>\n");
  return html;
}

}  // namespace pipeloom::cli
