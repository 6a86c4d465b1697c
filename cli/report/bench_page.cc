// The page of `pipeloom bench`: the share of problems that each schedule solves
// within an excess over the best, quality by time, and the tables. It needs no
// network.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/bench_tables.h"
#include "cli/report/report.h"
#include "studies/bench/entrants.h"

namespace pipeloom::cli {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 320;
constexpr double kLeft = 56;
constexpr double kRight = 36;  // Half of the widest label.
constexpr double kBottom = 40;
constexpr double kTop = 12;
constexpr size_t kMaxCurves = 10;

// Colours that most people can tell apart, on light and dark backgrounds.
constexpr std::array<const char*, kMaxCurves> kColours = {
    "#3b7dd8", "#e07b1f", "#2f9e63", "#c44569", "#8557c9",
    "#128f96", "#a5791b", "#6b7280", "#d14fb0", "#5c8a1e"};

struct Curve {
  std::string label{};
  std::vector<std::pair<double, double>> points{};  // 0 to 1 each.
};

struct Axis {
  std::string label{};
  std::vector<std::pair<double, std::string>> ticks{};
};

double X(double x) { return kLeft + x * (kWidth - kLeft - kRight); }
double Y(double y) {
  return kHeight - kBottom - y * (kHeight - kBottom - kTop);
}

std::string Plot(const std::string& title, const Axis& x, const Axis& y,
                 const std::vector<Curve>& curves) {
  std::string svg = absl::StrFormat(
      "<figure><figcaption>%s</figcaption><svg viewBox=\"0 0 %g %g\" "
      "role=\"img\" aria-label=\"%s\">",
      EscapeHtml(title), kWidth, kHeight, EscapeHtml(title));
  for (const auto& [at, text] : x.ticks) {
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" "
                          "y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" "
                          "y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                          X(at), X(at), Y(0), Y(1), X(at), Y(0) + 16,
                          EscapeHtml(text));
  }
  for (const auto& [at, text] : y.ticks) {
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" "
                          "y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" "
                          "y=\"%.1f\" text-anchor=\"end\">%s</text>",
                          X(0), X(1), Y(at), Y(at), kLeft - 8, Y(at) + 4,
                          EscapeHtml(text));
  }
  absl::StrAppendFormat(&svg,
                        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">"
                        "%s</text>",
                        X(0.5), kHeight - 6, EscapeHtml(x.label));
  for (size_t c = 0; c < curves.size(); ++c) {
    std::string points;
    for (const auto& [px, py] : curves[c].points) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", X(px), Y(py));
    }
    absl::StrAppendFormat(&svg,
                          "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" "
                          "stroke-width=\"2\"><title>%s</title></polyline>",
                          points, kColours[c % kMaxCurves],
                          EscapeHtml(curves[c].label));
  }
  svg += "</svg><p class=\"legend\">";
  for (size_t c = 0; c < curves.size(); ++c) {
    absl::StrAppendFormat(
        &svg, "<span><i style=\"background:%s\"></i>%s</span>",
        kColours[c % kMaxCurves], EscapeHtml(curves[c].label));
  }
  return svg + "</p></figure>";
}

// Returns the plot of the share of all problems that are solved within an
// excess over the best of all.
std::string SolvedPlot(const std::vector<studies::BenchResult>& results) {
  static constexpr double kMax = 0.5;
  // A square root spreads the small excesses, which matter most.
  const auto place = [](double excess) {
    return std::sqrt(std::min(excess, kMax) / kMax);
  };
  std::vector<std::pair<double, studies::Entrant>> ranking;
  for (const studies::Entrant& entrant : studies::EntrantsOf(results)) {
    double score = 0;
    for (const double e : studies::ExcessOf(entrant, results))
      score += 1 - place(e);
    ranking.emplace_back(-score, entrant);
  }
  std::stable_sort(
      ranking.begin(), ranking.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  if (ranking.size() > kMaxCurves) ranking.resize(kMaxCurves);
  std::vector<Curve> curves;
  for (const auto& [score, entrant] : ranking) {
    Curve curve{.label = entrant.label()};
    const std::vector<double> excess = studies::ExcessOf(entrant, results);
    double solved = 0;
    curve.points.emplace_back(0, 0);
    for (const double e : excess) {
      if (e > kMax) break;
      curve.points.emplace_back(place(e), solved);
      solved += 1 / static_cast<double>(results.size());
      curve.points.emplace_back(place(e), solved);
    }
    curve.points.emplace_back(1, solved);
    curves.push_back(std::move(curve));
  }
  Axis x{.label = "step time over the best of all", .ticks = {}};
  for (const double e : {0.0, 0.01, 0.05, 0.1, 0.2, 0.5}) {
    x.ticks.emplace_back(place(e), absl::StrFormat("%g%%", e * 100));
  }
  Axis y{.label = "", .ticks = {}};
  for (const double s : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    y.ticks.emplace_back(s, absl::StrFormat("%g%%", s * 100));
  }
  return Plot("Problems solved within so much of the best", x, y, curves);
}

// Returns the plot of the mean excess over the best by time budget, for the
// problems that were solved with all budgets.
std::string TimePlot(const std::vector<studies::BenchResult>& results) {
  std::map<std::string, std::vector<std::pair<Duration, double>>> means;
  double most = 0;
  Duration first{};
  Duration last{};
  for (const studies::Entrant& entrant : studies::EntrantsOf(results)) {
    if (entrant.budget == kZero) continue;
    const std::vector<double> excess = studies::ExcessOf(entrant, results);
    if (excess.empty()) continue;
    double sum = 0;
    for (const double e : excess) sum += e;
    const double mean = sum / static_cast<double>(excess.size());
    means[entrant.schedule].emplace_back(entrant.budget, mean);
    most = std::max(most, mean);
    first = first == kZero ? entrant.budget : std::min(first, entrant.budget);
    last = std::max(last, entrant.budget);
  }
  if (most <= 0 || first == last) return "";
  const auto place = [&](Duration d) {
    return std::log(ToSeconds(d) / ToSeconds(first)) /
           std::log(ToSeconds(last) / ToSeconds(first));
  };
  std::vector<Curve> curves;
  Axis x{.label = "time given to the search", .ticks = {}};
  for (auto& [schedule, points] : means) {
    std::sort(points.begin(), points.end());
    Curve curve{.label = schedule};
    for (const auto& [budget, mean] : points) {
      curve.points.emplace_back(place(budget), mean / most);
      if (std::none_of(x.ticks.begin(), x.ticks.end(), [&](const auto& tick) {
            return tick.first == place(budget);
          })) {
        x.ticks.emplace_back(place(budget), studies::BudgetLabel(budget));
      }
    }
    curves.push_back(std::move(curve));
  }
  Axis y{.label = "", .ticks = {}};
  for (const double s : {0.0, 0.5, 1.0}) {
    y.ticks.emplace_back(s, absl::StrFormat("%.1f%%", s * most * 100));
  }
  return Plot("Mean excess over the best of all, by search time", x, y, curves);
}

std::string HtmlTable(const Table& table) {
  std::string html = "<div class=\"scroll\"><table>";
  for (size_t i = 0; i < table.rows().size(); ++i) {
    const std::vector<std::string>& row = table.rows()[i];
    html += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const bool reason = c + 1 == row.size() && c + 1 < table.rows()[0].size();
      const char* const tag = i == 0 ? "th" : "td";
      absl::StrAppend(&html, "<", tag);
      if (i == 0) html += " scope=\"col\"";
      if (reason) {
        absl::StrAppend(&html, " class=\"why\" colspan=\"",
                        table.rows()[0].size() - c, "\"");
      }
      absl::StrAppend(&html, ">", EscapeHtml(row[c]), "</", tag, ">");
    }
    html += "</tr>";
  }
  return html + "</table></div>";
}

std::string HtmlNotes(const std::vector<std::string>& notes) {
  if (notes.empty()) return "";
  std::string html = "<ul class=\"notes\">";
  for (const std::string& note : notes) {
    absl::StrAppend(&html, "<li>", EscapeHtml(note), "</li>");
  }
  return html + "</ul>";
}

constexpr char kStyle[] = R"css(
:root{color-scheme:light dark;--page:#fafaf8;--card:#fff;--ink:#1c1e21;
--soft:#63686f;--line:#e2e2de}
@media (prefers-color-scheme:dark){:root{--page:#15171a;--card:#1d2024;
--ink:#e7e8ea;--soft:#9aa0a8;--line:#33373d}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 12px}
.soft,figcaption{color:var(--soft)}code{overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));
gap:16px}figure{margin:0;background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:16px}svg{width:100%;height:auto;display:block;
font:12px system-ui,"DejaVu Sans",sans-serif}svg text{fill:var(--soft)}
.grid{stroke:var(--line)}.legend{display:flex;flex-wrap:wrap;gap:4px 16px;
margin:8px 0 0;font-size:13px}.legend i{display:inline-block;width:12px;
height:12px;border-radius:3px;margin-right:6px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);
border-radius:10px}table{border-collapse:collapse;width:100%;
font-variant-numeric:tabular-nums;font-size:13px}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--line)}th{color:var(--soft)}
th:first-child,td:first-child,td.why{text-align:left}
.notes{color:var(--soft);font-size:13px}
)css";

}  // namespace

std::string BenchPage(const std::vector<studies::BenchResult>& results,
                      const std::string& command) {
  return absl::StrCat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\">"
      "<title>Schedule search benchmark</title><style>",
      kStyle,
      "</style></head><body><main><h1>Schedule search benchmark</h1>"
      "<p class=\"soft\">",
      results.size(), results.size() == 1 ? " problem" : " problems",
      ". Made by <code>", EscapeHtml(command),
      "</code></p><div class=\"plots\">", SolvedPlot(results),
      TimePlot(results), "</div><h2>Schedules</h2>",
      HtmlTable(SummaryTable(results)), "<h2>Problems</h2>",
      HtmlTable(ProblemTable(results)), HtmlNotes(BenchNotes(results)),
      "</main></body></html>\n");
}

}  // namespace pipeloom::cli
