#include "cli/report/page/plots.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/page/html.h"

namespace pipeloom::cli {
namespace {

// Colours that most people can tell apart, on light and dark backgrounds. More
// series than colours have another mark.
constexpr std::array<const char*, 10> kColours = {
    "#3b7dd8", "#e07b1f", "#2f9e63", "#c44569", "#8557c9",
    "#128f96", "#a5791b", "#6b7280", "#d14fb0", "#5c8a1e"};
constexpr size_t kMostTicks = 7;
constexpr double kBand = 0.1;

std::string ColourOf(size_t series) {
  return kColours[series % kColours.size()];
}
bool IsSquare(size_t series) { return series / kColours.size() % 2 == 1; }

// A logarithmic axis: places are 0 to 1.
class LogAxis {
 public:
  LogAxis(double least, double most)
      : low_(std::log(least / 1.25)), high_(std::log(most * 1.25)) {}

  double Place(double value) const {
    return (std::log(value) - low_) / (high_ - low_);
  }
  // Returns how far apart two values of this ratio are.
  double Length(double ratio) const { return std::log(ratio) / (high_ - low_); }
  // Returns values of one, two and five times powers of ten, or of ten alone if
  // they are too many.
  std::vector<double> Ticks() const {
    for (const std::vector<double>& steps :
         {std::vector<double>{1, 2, 5}, {1, 3}, {1}}) {
      std::vector<double> ticks;
      const auto first = static_cast<int>(std::floor(low_ / std::log(10.0)));
      const auto last = static_cast<int>(std::ceil(high_ / std::log(10.0)));
      for (int k = first; k <= last; ++k) {
        for (const double step : steps) {
          const double tick = step * std::pow(10.0, k);
          if (Place(tick) >= 0 && Place(tick) <= 1) ticks.push_back(tick);
        }
      }
      if (ticks.size() <= kMostTicks) return ticks;
    }
    return {};
  }

 private:
  double low_;
  double high_;
};

void AppendPoint(const AgreementPlot::Point& p, const LogAxis& axis,
                 std::string* html) {
  const double x = 100 * axis.Place(p.measured);
  const double y = 100 * (1 - axis.Place(p.predicted));
  const char* const hollow = p.hollow ? " class=\"hollow\"" : "";
  if (IsSquare(p.series)) {
    absl::StrAppendFormat(html,
                          "<rect%s x=\"%.2f%%\" y=\"%.2f%%\" width=\"6\" "
                          "height=\"6\" transform=\"translate(-3 -3)\">"
                          "<title>%s</title></rect>\n",
                          hollow, x, y, EscapeHtml(p.label));
  } else {
    absl::StrAppendFormat(html,
                          "<circle%s cx=\"%.2f%%\" cy=\"%.2f%%\" r=\"3.5\">"
                          "<title>%s</title></circle>\n",
                          hollow, x, y, EscapeHtml(p.label));
  }
}

// Appends the grid, the band and the line of equal values.
void AppendPlane(const AgreementPlot& plot, const LogAxis& axis,
                 std::string* html) {
  for (const double tick : axis.Ticks()) {
    const double at = 100 * axis.Place(tick);
    absl::StrAppendFormat(
        html,
        "<line x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"0\" y2=\"100%%\"/>"
        "<line x1=\"0\" x2=\"100%%\" y1=\"%.2f%%\" y2=\"%.2f%%\"/>"
        "<text x=\"%.2f%%\" y=\"100%%\" dy=\"16\" text-anchor=\"middle\">%s"
        "</text><text x=\"0\" dx=\"-6\" y=\"%.2f%%\" dy=\"4\" "
        "text-anchor=\"end\">%s</text>\n",
        at, at, 100 - at, 100 - at, at, EscapeHtml(plot.text(tick)), 100 - at,
        EscapeHtml(plot.text(tick)));
  }
  const double above = 100 * axis.Length(1 + kBand);
  const double below = 100 * axis.Length(1 - kBand);
  absl::StrAppendFormat(
      html,
      "<svg viewBox=\"0 0 100 100\" preserveAspectRatio=\"none\" "
      "width=\"100%%\" height=\"100%%\"><polygon points=\"0,%.3f 100,%.3f "
      "100,%.3f 0,%.3f\"/></svg>\n"
      "<line class=\"equal\" x1=\"0\" x2=\"100%%\" y1=\"100%%\" y2=\"0\"/>\n",
      100 - above, -above, -below, 100 - below);
}

}  // namespace

void AppendScatter(const ScatterPlot& scatter, std::string* html) {
  constexpr double kWidth = 900, kHeight = 380, kLeft = 70, kBottom = 44;
  double most_x = 0, most_y = 0;
  for (const ScatterPlot::Point& p : scatter.points) {
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
  std::vector<const ScatterPlot::Point*> best;
  for (const ScatterPlot::Point& p : scatter.points) {
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

void AppendAgreement(const AgreementPlot& plot, std::string* html) {
  std::vector<std::vector<const AgreementPlot::Point*>> of(plot.series.size());
  double least = HUGE_VAL;
  double most = 0;
  for (const AgreementPlot::Point& p : plot.points) {
    if (!(p.measured > 0) || !(p.predicted > 0)) continue;
    if (!std::isfinite(p.measured) || !std::isfinite(p.predicted)) continue;
    least = std::min({least, p.measured, p.predicted});
    most = std::max({most, p.measured, p.predicted});
    of[p.series].push_back(&p);
  }
  if (most <= 0) return;
  const LogAxis axis(least, most);
  absl::StrAppendFormat(
      html,
      "<figure class=\"card agree\"><div class=\"plane\"><svg role=\"img\" "
      "aria-label=\"Predicted against measured %s; the table has the "
      "numbers\">\n",
      EscapeHtml(plot.of));
  AppendPlane(plot, axis, html);
  // Large series are drawn first, so that they cover no small ones.
  std::vector<size_t> order;
  for (size_t s = 0; s < of.size(); ++s) order.push_back(s);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return of[a].size() > of[b].size();
  });
  for (const size_t s : order) {
    if (of[s].empty()) continue;
    absl::StrAppendFormat(html, "<g data-series=\"%d\" style=\"--c:%s\">\n", s,
                          ColourOf(s));
    for (const AgreementPlot::Point* p : of[s]) AppendPoint(*p, axis, html);
    absl::StrAppend(html, "</g>\n");
  }
  absl::StrAppendFormat(
      html,
      "<text x=\"50%%\" y=\"100%%\" dy=\"36\" text-anchor=\"middle\">measured "
      "%s</text><text x=\"0\" y=\"0\" dx=\"6\" dy=\"15\">predicted</text>"
      "</svg></div>\n<p class=\"told\" aria-live=\"polite\">The line: equal; "
      "the band: 10 %% more or less. Point at a mark or touch it to see its "
      "run.</p>\n<p class=\"keys\">",
      EscapeHtml(plot.of));
  for (size_t s = 0; s < of.size(); ++s) {
    if (of[s].empty()) continue;
    absl::StrAppendFormat(
        html,
        "<button type=\"button\" aria-pressed=\"true\" data-series=\"%d\">"
        "<i%s style=\"background:%s\"></i>%s</button>",
        s, IsSquare(s) ? "" : " class=\"round\"", ColourOf(s),
        EscapeHtml(plot.series[s]));
  }
  absl::StrAppend(html, "</p></figure>\n");
}

void AppendBars(const BarChart& chart, double most, std::string* html) {
  absl::StrAppend(html, "<h3>", EscapeHtml(chart.title),
                  "</h3><div class=\"bars\">\n");
  for (const BarChart::Bar& bar : chart.bars) {
    absl::StrAppendFormat(
        html,
        "<span>%s</span><div class=\"bar\" title=\"%s\"><i style=\"width:"
        "%.2f%%;background:var(--accent)\"></i></div><span>%s</span>\n",
        EscapeHtml(bar.label), EscapeHtml(bar.details),
        100 * std::clamp(bar.value / most, 0.0, 1.0), EscapeHtml(bar.text));
  }
  absl::StrAppend(html, "</div>\n");
}

}  // namespace pipeloom::cli
