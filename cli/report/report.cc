#include "cli/report/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/report/report_assets.h"
#include "cli/report/report_data.h"
#include "trace/trace_analysis.h"

namespace pipeloom::cli {
namespace {

constexpr int kPasses = 3;
constexpr const char* kPassNames[kPasses] = {"forward", "backward",
                                             "weight gradient"};

void AppendTable(const Table& table, std::string* html) {
  absl::StrAppend(html, "<div class=\"card scroll\"><table>\n");
  const size_t columns = table.rows()[0].size();
  for (size_t r = 0; r < table.rows().size(); ++r) {
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

// Cells that have their exact value as an attribute, which a test compares.
std::string TimeCell(Duration d) {
  return absl::StrFormat("<td data-ns=\"%d\">%s</td>", d.count(),
                         FormatDuration(d));
}
std::string BytesCell(Bytes b) {
  return absl::StrFormat("<td data-bytes=\"%d\">%s</td>", b.count(),
                         FormatBytes(b));
}

std::string HeadRow(const std::vector<std::string>& names) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& name : names) {
    absl::StrAppend(&html, "<th scope=\"col\"",
                    &name == &names.front() ? " class=\"l\">" : ">",
                    EscapeHtml(name), "</th>");
  }
  return absl::StrCat(html, "</tr></thead><tbody>\n");
}

std::string RankHead(RankId rank) {
  return absl::StrFormat("<tr><th scope=\"row\" class=\"l\">rank %d</th>",
                         rank.value());
}

// Tables of more than 16 ranks are closed at first.
const char* OpenIfFew(const StageGraph& graph) {
  return graph.num_ranks() <= 16 ? " open" : "";
}

// Appends a table of each rank's time by use; a row adds up to the step time.
void AppendBubbles(const StageGraph& graph, const StepTrace& trace,
                   const trace::TraceAnalysis& analysis, size_t index,
                   std::string* html) {
  absl::StrAppendFormat(
      html,
      "<h3>Where each rank's idle time goes</h3><div class=\"card\">"
      "<div id=\"bubbles-%d\"></div><details%s><summary>As a table"
      "</summary>",
      index, OpenIfFew(graph));
  std::vector<std::string> head = {"", "busy", "epilogue", "idle"};
  for (int k = 0; k < trace::kNumBubbleKinds; ++k) {
    head.emplace_back(trace::BubbleName(static_cast<trace::BubbleKind>(k)));
  }
  absl::StrAppend(html, HeadRow(head));
  IdVector<RankId, Duration> busy(graph.num_ranks(), kZero);
  IdVector<RankId, Duration> epilogue(graph.num_ranks(), kZero);
  for (const Span& span : trace.spans) {
    if (!busy.Contains(span.rank)) continue;
    if (span.kind == SpanKind::kTask) busy[span.rank] += span.end - span.start;
    if (span.kind == SpanKind::kEpilogue) {
      epilogue[span.rank] += span.end - span.start;
    }
  }
  for (const RankId r : graph.rank_ids()) {
    const trace::BubbleTimes& times = analysis.bubbles[r];
    absl::StrAppend(html, RankHead(r), TimeCell(busy[r]), TimeCell(epilogue[r]),
                    TimeCell(trace::Total(times)));
    for (const Duration d : times) absl::StrAppend(html, TimeCell(d));
    absl::StrAppend(html, "</tr>\n");
  }
  absl::StrAppend(html, "</tbody></table></div></details></div>\n");
}

void AppendMemory(const StageGraph& graph, const StepTrace& trace, size_t index,
                  std::string* html) {
  absl::StrAppendFormat(
      html,
      "<h3>Peak memory of one GPU of each rank</h3><div class=\"card\">"
      "<div id=\"peaks-%d\"></div><details%s><summary>As a table"
      "</summary>",
      index, OpenIfFew(graph));
  std::vector<std::string> head = {"", "peak", "limit", "at"};
  for (int i = 0; i < kNumMemoryItems; ++i) {
    head.emplace_back(MemoryItemName(static_cast<MemoryItem>(i)));
  }
  absl::StrAppend(html, HeadRow(head));
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(trace);
  for (const RankId r : graph.rank_ids()) {
    const MemoryPeak peak = peaks.Contains(r) ? peaks[r] : MemoryPeak();
    const Bytes limit = graph.rank(r).memory.limit;
    absl::StrAppend(html, RankHead(r), BytesCell(peak.total),
                    limit > Bytes(0) ? BytesCell(limit) : "<td>none</td>",
                    TimeCell(peak.at - kStepStart));
    for (const Bytes b : peak.items) absl::StrAppend(html, BytesCell(b));
    absl::StrAppend(html, "</tr>\n");
  }
  absl::StrAppend(html, "</tbody></table></div></details></div>\n");
}

void AppendCritical(const StageGraph& graph, const StepTrace& trace,
                    const trace::TraceAnalysis& analysis, std::string* html) {
  using Kind = trace::PathPiece::Kind;
  std::map<std::string, std::pair<Duration, int>> parts;
  for (const trace::PathPiece& piece : analysis.critical) {
    std::string name;
    switch (piece.kind) {
      case Kind::kTask: {
        const Task& task = graph.task(piece.task);
        name = absl::StrCat(
            graph.module_names()[static_cast<size_t>(task.module.value())], " ",
            kPassNames[static_cast<int>(task.pass)]);
        break;
      }
      case Kind::kTransfer:
        name = "transfers";
        break;
      case Kind::kQueue:
        name = "transfers that wait for a link or a receive";
        break;
      case Kind::kEpilogue:
        name = "gradient reduction and optimizer step";
        break;
      case Kind::kGap:
        name = "idle without an awaited tensor";
        break;
    }
    parts[name].first += piece.end - piece.start;
    ++parts[name].second;
  }
  Table table({"on the critical path", "parts", "time", "share"});
  const double whole = std::max(1e-12, ToSeconds(trace.step_time()));
  std::vector<std::pair<std::string, std::pair<Duration, int>>> rows(
      parts.begin(), parts.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.first > b.second.first;
  });
  for (const auto& [name, part] : rows) {
    table.AddRow({name, absl::StrCat(part.second), FormatDuration(part.first),
                  FormatPercent(ToSeconds(part.first) / whole)});
  }
  absl::StrAppend(html, "<h3>Critical path</h3>\n");
  AppendTable(table, html);
}

void AppendMakeUp(const StageGraph& graph, const Microbatches& microbatches,
                  std::string* html) {
  std::vector<std::string> head = {"microbatch", "samples"};
  for (const std::string& module : graph.module_names()) {
    head.push_back(absl::StrCat(module, " instances"));
    head.push_back(absl::StrCat(module, " tokens"));
    head.push_back("in sub-microbatches");
  }
  Table table(head);
  const auto modules = static_cast<int32_t>(graph.module_names().size());
  for (int32_t m = 0; m < microbatches.num_microbatches; ++m) {
    const MicrobatchId id(m);
    std::vector<std::string> row = {
        absl::StrCat(m), microbatches.samples.Contains(id)
                             ? absl::StrCat(microbatches.samples[id].size())
                             : "-"};
    for (int32_t k = 0; k < modules; ++k) {
      WorkShape sum;
      int subs = 0;
      for (const SubMicrobatchId s : microbatches.Of(id, ModuleId(k))) {
        sum += microbatches.sub_microbatches[s].shape;
        ++subs;
      }
      row.push_back(absl::StrCat(sum.instances));
      row.push_back(absl::StrCat(sum.tokens));
      row.push_back(absl::StrCat(subs));
    }
    table.AddRow(row);
  }
  absl::StrAppend(html, "<h3>What the microbatches are made of</h3>\n");
  AppendTable(table, html);
}

void AppendMeasured(const StageGraph& graph, const StepTrace& predicted,
                    const StepTrace& measured, std::string* html) {
  struct Sums {
    Duration predicted{};
    Duration measured{};
    int tasks = 0;
  };
  std::map<std::string, Sums> sums;
  const auto add = [&](const StepTrace& trace, bool is_measured) {
    for (const Span& span : trace.spans) {
      if (span.kind != SpanKind::kTask) continue;
      const Task& task = graph.task(span.task);
      Sums& s = sums[absl::StrCat(
          graph.module_names()[static_cast<size_t>(task.module.value())], " ",
          kPassNames[static_cast<int>(task.pass)])];
      (is_measured ? s.measured : s.predicted) += span.end - span.start;
      if (is_measured) ++s.tasks;
    }
  };
  add(predicted, false);
  add(measured, true);
  const auto error = [](Duration p, Duration m) {
    return p > kZero ? absl::StrFormat("%+.2f %%",
                                       100 * (ToSeconds(m) / ToSeconds(p) - 1))
                     : std::string("-");
  };
  Table table({"", "tasks", "predicted", "measured", "difference"});
  table.AddRow({"step", "", FormatDuration(predicted.step_time()),
                FormatDuration(measured.step_time()),
                error(predicted.step_time(), measured.step_time())});
  for (const auto& [name, s] : sums) {
    table.AddRow({absl::StrCat("all ", name), absl::StrCat(s.tasks),
                  FormatDuration(s.predicted), FormatDuration(s.measured),
                  error(s.predicted, s.measured)});
  }
  absl::StrAppend(html, "<h3>Predicted and measured</h3>\n");
  AppendTable(table, html);
}

void AppendStep(const Report::Step& step, const trace::TraceAnalysis& analysis,
                size_t index, std::string* html) {
  const StageGraph& graph = step.plan->graph;
  absl::StrAppendFormat(html,
                        "<section><h2>%s</h2>\n<div class=\"card\" "
                        "id=\"timeline-%d\"></div>\n",
                        EscapeHtml(step.title), index);
  if (step.measured != nullptr) {
    AppendMeasured(graph, *step.trace, *step.measured, html);
  }
  AppendBubbles(graph, *step.trace, analysis, index, html);
  AppendMemory(graph, *step.trace, index, html);
  AppendCritical(graph, *step.trace, analysis, html);
  if (step.microbatches != nullptr) {
    AppendMakeUp(graph, *step.microbatches, html);
  }
  absl::StrAppendFormat(
      html,
      "<details class=\"card\" id=\"tasks-%d\"><summary>Every task, with why "
      "it started when it did</summary></details></section>\n",
      index);
}

// Escapes JSON so that it cannot end the script element that holds it.
std::string ForScript(const std::string& json) {
  return absl::StrReplaceAll(json, {{"<", "\\u003c"}, {"&", "\\u0026"}});
}

void AppendScatter(const Report::Scatter& scatter, std::string* html) {
  constexpr double kWidth = 900, kHeight = 380, kLeft = 70, kBottom = 44;
  double most_x = 0, most_y = 0;
  for (const Report::Scatter::Point& p : scatter.points) {
    if (std::isfinite(p.x)) most_x = std::max(most_x, p.x);
    if (std::isfinite(p.y)) most_y = std::max(most_y, p.y);
  }
  if (most_x <= 0 || most_y <= 0) return;
  const auto x = [&](double v) {
    return kLeft + v / (most_x * 1.05) * (kWidth - kLeft - 20);
  };
  const auto y = [&](double v) {
    return kHeight - kBottom - v / (most_y * 1.08) * (kHeight - kBottom - 12);
  };
  absl::StrAppendFormat(html,
                        "<h2>%s</h2><div class=\"card\"><svg class=\"scatter\" "
                        "viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
                        "aria-label=\"%s against %s; the table has the "
                        "numbers\">\n",
                        EscapeHtml(scatter.title), kWidth, kHeight,
                        EscapeHtml(scatter.y_label),
                        EscapeHtml(scatter.x_label));
  for (int k = 0; k <= 4; ++k) {
    const double vx = most_x * k / 4, vy = most_y * k / 4;
    absl::StrAppendFormat(
        html,
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g</text>\n",
        kLeft, kWidth - 20, y(vy), y(vy), kLeft - 8, y(vy) + 4, vy, x(vx),
        kHeight - kBottom + 18, vx);
  }
  std::vector<const Report::Scatter::Point*> best;
  for (const Report::Scatter::Point& p : scatter.points) {
    if (!std::isfinite(p.x) || !std::isfinite(p.y)) continue;
    if (p.best) best.push_back(&p);
    absl::StrAppendFormat(html,
                          "<circle%s cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"><title>"
                          "%s</title></circle>\n",
                          p.best ? " class=\"p\"" : "", x(p.x), y(p.y),
                          p.best ? 5 : 4, EscapeHtml(p.label));
  }
  std::sort(best.begin(), best.end(),
            [](const auto* a, const auto* b) { return a->x < b->x; });
  std::string path;
  for (const auto* p : best) {
    absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L",
                          x(p->x), y(p->y));
  }
  absl::StrAppendFormat(
      html,
      "<path d=\"%s\"/><text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%s"
      "</text><text transform=\"translate(16 %.0f) rotate(-90)\" "
      "text-anchor=\"middle\">%s</text></svg></div>\n",
      path, kWidth / 2, kHeight - 6, EscapeHtml(scatter.x_label), kHeight / 2,
      EscapeHtml(scatter.y_label));
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"},
                                    {"<", "&lt;"},
                                    {">", "&gt;"},
                                    {"\"", "&quot;"},
                                    {"'", "&#39;"}});
}

std::string ReportHtml(const Report& report) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'; img-src data:\">\n<title>",
      EscapeHtml(report.title), "</title>\n<style>\n", kReportStyle,
      "</style>\n</head>\n<body>\n<main>\n<div class=\"top\"><div><h1>",
      EscapeHtml(report.title), "</h1>\n<p class=\"soft\">",
      EscapeHtml(report.subtitle), "</p></div>\n<div class=\"actions\">");
  if (!report.command.empty()) {
    absl::StrAppend(&html,
                    "<button type=\"button\" id=\"copy\">Copy command"
                    "</button>");
  }
  absl::StrAppend(&html,
                  "<button type=\"button\" id=\"theme\" aria-label=\"Light or "
                  "dark\">Light or dark</button></div></div>\n");
  if (!report.command.empty()) {
    absl::StrAppend(&html, "<code class=\"command\">",
                    EscapeHtml(report.command), "</code>\n");
  }
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
  for (const Report::Scatter& scatter : report.scatters) {
    AppendScatter(scatter, &html);
  }
  for (const Report::NamedTable& named : report.tables) {
    absl::StrAppend(&html, "<h2>", EscapeHtml(named.title), "</h2>\n");
    AppendTable(named.table, &html);
  }
  if (report.steps.size() > 1) {
    absl::StrAppend(&html,
                    "<p class=\"toolbar\" style=\"margin-top:28px\"><label>"
                    "<input type=\"checkbox\" id=\"link\"",
                    report.common_axis > kZero ? " checked" : "",
                    "/>Zoom all timelines together</label></p>\n");
  }
  formats::JsonWriter json;
  json.BeginObject().Key("command").String(report.command);
  json.Key("steps").BeginArray();
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const Report::Step& step = report.steps[i];
    const trace::TraceAnalysis analysis =
        trace::Analyze(*step.plan, *step.trace);
    AppendStep(step, analysis, i, &html);
    AppendStepJson(step, analysis, report.common_axis, &json);
  }
  json.EndArray().EndObject();
  absl::StrAppend(&html, "<footer>\n");
  for (const std::string& note : report.notes) {
    absl::StrAppend(&html, "<p>", EscapeHtml(note), "</p>\n");
  }
  return absl::StrCat(html, "</footer>\n</main>\n<script type=",
                      "\"application/json\" id=\"data\">",
                      ForScript(json.text()), "</script>\n<script>\n",
                      kReportScript, "</script>\n</body>\n</html>\n");
}

}  // namespace pipeloom::cli
