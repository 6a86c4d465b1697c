#include "cli/report/report.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/report_data.h"
#include "trace/trace_analysis.h"
#include "trace/trace_summary.h"

namespace pipeloom::cli {
namespace {

constexpr int kPasses = 3;
constexpr const char* kPassNames[kPasses] = {"forward", "backward",
                                             "weight gradient"};

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
  const bool has_memory = trace::HasMemory(trace);
  const auto cell = [&](const std::string& known) {
    return has_memory ? known : "<td>-</td>";
  };
  for (const RankId r : graph.rank_ids()) {
    const MemoryPeak peak = peaks.Contains(r) ? peaks[r] : MemoryPeak();
    const Bytes limit = graph.rank(r).memory.limit;
    absl::StrAppend(html, RankHead(r), cell(BytesCell(peak.total)),
                    limit > Bytes(0) ? BytesCell(limit) : "<td>none</td>",
                    cell(TimeCell(peak.at - kStepStart)));
    for (const Bytes b : peak.items) absl::StrAppend(html, cell(BytesCell(b)));
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

}  // namespace

std::string ReportHtml(const Report& report) {
  std::string html;
  AppendPageStart({.title = report.title,
                   .subtitle = report.subtitle,
                   .command = report.command,
                   .figures = report.figures},
                  &html);
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
  AppendPageEnd(report.notes, json.text(), &html);
  return html;
}

}  // namespace pipeloom::cli
