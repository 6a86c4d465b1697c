// The pipeline of a step as SVG.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report.h"
#include "cli/report_drawing.h"
#include "cli/report_style.h"
#include "cli/trace_summary.h"

namespace pipeloom::cli {
namespace {

constexpr double kGutter = 58;       // Of the rank names.
constexpr double kAxis = 22;         // Height of the time marks.
constexpr double kMergeBelow = 0.8;  // Narrower tasks are drawn together.
constexpr int kMostTransfers = 300;  // More are not drawn.

double RowHeight(int32_t num_ranks) {
  if (num_ranks <= 12) return 30;
  if (num_ranks <= 32) return 20;
  return num_ranks <= 100 ? 12 : 7;
}

// 1, 2 or 5 times a power of ten, for about `count` marks.
double NiceStep(double range, double count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string Fill(const Task& task) {
  const int colour = task.module.value() % kNumModuleColours;
  switch (task.pass) {
    case Pass::kForward:
      return absl::StrFormat("var(--m%da)", colour);
    case Pass::kBackward:
      return absl::StrFormat("var(--m%db)", colour);
    case Pass::kWeightGrad:
      return absl::StrFormat("url(#w%d)", colour);
  }
  return "none";
}

class Drawing {
 public:
  Drawing(const StageGraph& graph, const StepTrace& trace, int width,
          Duration axis)
      : graph_(graph),
        trace_(trace),
        width_(width),
        axis_(std::max(axis, trace.step_time())),
        row_(RowHeight(graph.num_ranks())),
        scale_((width - kGutter - 8) /
               std::max(1.0, static_cast<double>(axis_.count()))) {}

  std::string Draw() {
    const double height = kAxis + row_ * graph_.num_ranks() + 4;
    absl::StrAppendFormat(&svg_,
                          "<svg viewBox=\"0 0 %d %.0f\" role=\"img\" "
                          "aria-label=\"Pipeline timeline\">\n",
                          width_, height);
    DrawAxis(height);
    for (const RankId r : graph_.rank_ids()) {
      absl::StrAppendFormat(
          &svg_,
          "<text x=\"0\" y=\"%.1f\">%s</text><rect class=\"row\" x=\"%.1f\" "
          "y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n",
          Top(r) + row_ * 0.5 + 3.5,
          row_ >= 10 || r.value() % 4 == 0 ? absl::StrCat("rank ", r.value())
                                           : "",
          kGutter, Top(r) + 1,
          static_cast<double>(trace_.step_time().count()) * scale_, row_ - 2);
    }
    for (size_t i = 0; i < trace_.spans.size();) i = DrawSpans(i);
    DrawTransfers();
    return svg_ + "</svg>\n";
  }

 private:
  double X(SimTime t) const {
    return kGutter + static_cast<double>(t.time_since_epoch().count()) * scale_;
  }
  double Top(RankId rank) const { return kAxis + row_ * rank.value(); }

  void DrawAxis(double height) {
    const double total = ToMicroseconds(axis_);
    if (total <= 0) return;
    const double step = NiceStep(total, width_ / 130.0);
    for (int i = 0; i * step <= total; ++i) {
      const double x = kGutter + i * step * 1e3 * scale_;
      const std::string label =
          i == 0         ? "0"
          : total >= 2e6 ? absl::StrFormat("%g s", i * step / 1e6)
          : total >= 2e3 ? absl::StrFormat("%g ms", i * step / 1e3)
                         : absl::StrFormat("%g us", i * step);
      const bool near_end = x > width_ - 40;
      absl::StrAppendFormat(
          &svg_,
          "<line class=\"tick\" x1=\"%.1f\" y1=\"14\" x2=\"%.1f\" "
          "y2=\"%.0f\"/><text x=\"%.1f\" y=\"11\" text-anchor=\"%s\">%s"
          "</text>\n",
          x, x, height, x,
          i == 0     ? "start"
          : near_end ? "end"
                     : "middle",
          label);
    }
  }

  void Rect(RankId rank, double x, double w, absl::string_view paint,
            absl::string_view title) {
    absl::StrAppendFormat(&svg_,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
                          "height=\"%.1f\" %s><title>%s</title></rect>",
                          x, Top(rank) + 1, w, row_ - 2, paint,
                          EscapeHtml(title));
  }

  // Draws the span at `i`, or a run of tiny neighbours; returns what is next.
  size_t DrawSpans(size_t i) {
    const Span& span = trace_.spans[i];
    const double x = X(span.start);
    const double w = X(span.end) - x;
    if (span.kind == SpanKind::kEpilogue) {
      Rect(span.rank, x, w, "class=\"e\"",
           absl::StrCat("gradient reduction and optimizer step, ",
                        FormatDuration(span.end - span.start)));
      svg_ += '\n';
      return i + 1;
    }
    if (span.kind != SpanKind::kTask) return i + 1;
    const Task& task = graph_.task(span.task);
    if (w >= kMergeBelow) {
      // A hairline apart, so that equal neighbours can be told from each other.
      Rect(span.rank, x, w > 4 ? w - 0.7 : w,
           absl::StrCat("fill=\"", Fill(task), "\""), Title(span));
      if (w >= 16 && row_ >= 20 && task.pass != Pass::kWeightGrad) {
        absl::StrAppendFormat(
            &svg_, "<text class=\"t%s\" x=\"%.1f\" y=\"%.1f\">%d</text>",
            task.pass == Pass::kForward ? " d" : "", x + w / 2,
            Top(span.rank) + row_ / 2 + 3.5, task.microbatch.value());
      }
      svg_ += '\n';
      return i + 1;
    }
    // A run of tasks that together fill at least a pixel, or ends at a gap.
    Duration longest = span.end - span.start;
    TaskId main = span.task;
    SimTime end = span.end;
    int count = 1;
    size_t next = i + 1;
    for (; next < trace_.spans.size(); ++next) {
      const Span& other = trace_.spans[next];
      if (other.rank != span.rank) break;
      if (other.kind == SpanKind::kEpilogue) break;
      if (other.kind != SpanKind::kTask) continue;
      if (X(other.end) - x > 1.2 || X(other.start) - X(end) > kMergeBelow)
        break;
      if (other.end - other.start > longest) {
        longest = other.end - other.start;
        main = other.task;
      }
      end = other.end;
      ++count;
    }
    if (X(end) - x < 0.05) return next;  // Cannot be seen.
    Rect(span.rank, x, X(end) - x,
         absl::StrCat("fill=\"", Fill(graph_.task(main)), "\""),
         count == 1 ? Title(span)
                    : absl::StrCat(count, " tasks, ",
                                   FormatDuration(end - span.start)));
    svg_ += '\n';
    return next;
  }

  std::string Title(const Span& span) const {
    const Task& task = graph_.task(span.task);
    std::string text = absl::StrFormat(
        "%c %s, stage %d, microbatch %d", PassLetter(task.pass),
        graph_.module_names()[static_cast<size_t>(task.module.value())],
        task.stage.value(), task.microbatch.value());
    if (task.sub_microbatch > 0) {
      absl::StrAppend(&text, ".", task.sub_microbatch);
    }
    absl::StrAppend(&text, ": ", FormatDuration(span.end - span.start), " at ",
                    FormatDuration(span.start - kStepStart),
                    task.recomputes ? ", with recomputation" : "");
    return text;
  }

  void DrawTransfers() {
    int count = 0;
    for (const Span& span : trace_.spans) {
      if (span.kind == SpanKind::kTransfer) ++count;
    }
    if (count > kMostTransfers) return;
    const IdVector<TaskId, const Span*> spans = TaskSpans(graph_, trace_);
    for (const Span& span : trace_.spans) {
      if (span.kind != SpanKind::kTransfer) continue;
      const Dependency& edge = graph_.edge(span.edge);
      const Span* consumer = spans[edge.to];
      if (consumer == nullptr) continue;
      const RankId from = graph_.task(edge.from).rank;
      const RankId to = graph_.task(edge.to).rank;
      const bool down = from < to;
      absl::StrAppendFormat(
          &svg_, "<path class=\"link\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n",
          X(span.start), Top(from) + (down ? row_ - 1 : 1), X(span.end),
          Top(to) + (down ? 1 : row_ - 1));
    }
  }

  const StageGraph& graph_;
  const StepTrace& trace_;
  int width_;
  Duration axis_;
  double row_;
  double scale_;  // Pixels a nanosecond.
  std::string svg_{};
};

}  // namespace

std::string PatternsSvg(int num_modules) {
  std::string text =
      "<svg width=\"0\" height=\"0\" style=\"position:absolute\" "
      "aria-hidden=\"true\"><defs>";
  for (int m = 0; m < std::min(num_modules, kNumModuleColours); ++m) {
    absl::StrAppendFormat(
        &text,
        "<pattern id=\"w%d\" width=\"5\" height=\"5\" "
        "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
        "<rect width=\"5\" height=\"5\" fill=\"var(--m%da)\"/>"
        "<rect width=\"2.2\" height=\"5\" fill=\"var(--m%db)\"/></pattern>",
        m, m, m);
  }
  return text + "</defs></svg>\n";
}

std::string TimelineSvg(const StageGraph& graph, const StepTrace& trace,
                        int width, Duration axis) {
  return Drawing(graph, trace, width, axis).Draw();
}

std::string TimelineLegend(const StageGraph& graph) {
  const bool split =
      std::any_of(graph.tasks().begin(), graph.tasks().end(),
                  [](const Task& t) { return t.pass == Pass::kWeightGrad; });
  std::string text = "<div class=\"legend\">";
  for (size_t m = 0; m < graph.module_names().size(); ++m) {
    const int c = static_cast<int>(m) % kNumModuleColours;
    absl::StrAppendFormat(
        &text,
        "<span><svg viewBox=\"0 0 34 12\"><rect width=\"%d\" height=\"12\" "
        "fill=\"var(--m%da)\"/><rect x=\"%d\" width=\"%d\" height=\"12\" "
        "fill=\"var(--m%db)\"/>",
        split ? 11 : 17, c, split ? 11 : 17, split ? 11 : 17, c);
    if (split) {
      absl::StrAppendFormat(&text,
                            "<rect x=\"22\" width=\"12\" height=\"12\" "
                            "fill=\"url(#w%d)\"/>",
                            c);
    }
    absl::StrAppend(&text, "</svg>", EscapeHtml(graph.module_names()[m]),
                    ": forward, backward", split ? ", weight gradient" : "",
                    "</span>");
  }
  absl::StrAppend(
      &text,
      "<span class=\"item\"><svg viewBox=\"0 0 12 12\"><rect class=\"e\" "
      "width=\"12\" height=\"12\"/></svg>gradient reduction, optimizer</span>"
      "<span class=\"item\"><svg viewBox=\"0 0 12 12\"><rect class=\"row\" "
      "width=\"12\" height=\"12\"/></svg>idle</span>"
      "<span>numbers: microbatch</span></div>\n");
  return text;
}

}  // namespace pipeloom::cli
