// The page of `pipeloom backtest`: predicted against measured, errors by cause,
// and every run by the size of its error; of step time and of peak memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/console/table.h"
#include "cli/report/backtest_tables.h"
#include "cli/report/page/html.h"
#include "cli/report/page/plots.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

constexpr size_t kOpenRows = 30;  // Rows of a table that show at first.

// A run with what its table says of it.
struct Row {
  const studies::ComparedRun* run = nullptr;
  size_t table = 0;
  std::string table_name{};
  std::string device{};
};

// The quantity that is compared: step times or peaks of memory.
struct Quantity {
  std::string title{};
  std::string name{};
  std::string short_name{};
  std::function<bool(const studies::ComparedRun&)> measured{};
  // Whether the run was used to fit, so that its error does not count.
  std::function<bool(const studies::ComparedRun&)> fitted{};
  std::function<double(const studies::ComparedRun&)> error{};
  // Values as plots and as tables show them.
  std::function<std::pair<double, double>(const studies::ComparedRun&)>
      values{};  // Measured and predicted.
  std::function<std::string(double)> axis{};
  std::function<std::pair<std::string, std::string>(
      const studies::ComparedRun&)>
      texts{};
};

Quantity StepTimes() {
  return {.title = "Step time",
          .name = "step time",
          .short_name = "step time",
          .measured = [](const studies::ComparedRun&) { return true; },
          .fitted = [](const studies::ComparedRun& c) { return c.fitted; },
          .error = [](const studies::ComparedRun& c) { return c.step_error(); },
          .values =
              [](const studies::ComparedRun& c) {
                return std::pair(ToSeconds(c.run.step_time),
                                 ToSeconds(c.emulated.step_time));
              },
          .axis =
              [](double s) {
                return s < 1 ? absl::StrFormat("%g ms", 1e3 * s)
                             : absl::StrFormat("%g s", s);
              },
          .texts =
              [](const studies::ComparedRun& c) {
                return std::pair(FormatDuration(c.run.step_time),
                                 FormatDuration(c.emulated.step_time));
              }};
}

Quantity Peaks() {
  constexpr double kGib = int64_t{1} << 30;
  return {
      .title = "Peak memory",
      .name = "peak memory",
      .short_name = "memory",
      .measured =
          [](const studies::ComparedRun& c) {
            return c.run.peak_allocated > Bytes(0);
          },
      .fitted = [](const studies::ComparedRun&) { return false; },
      .error = [](const studies::ComparedRun& c) { return c.peak_error(); },
      .values =
          [](const studies::ComparedRun& c) {
            return std::pair(
                static_cast<double>(c.run.peak_allocated.count()) / kGib,
                static_cast<double>(c.emulated.peak_allocated.count()) / kGib);
          },
      .axis = [](double gib) { return absl::StrFormat("%g GiB", gib); },
      .texts =
          [](const studies::ComparedRun& c) {
            return std::pair(FormatBytes(c.run.peak_allocated),
                             FormatBytes(c.emulated.peak_allocated));
          }};
}

std::string SignedPercent(double ratio) {
  return absl::StrFormat("%+.1f %%", 100 * ratio);
}

std::string PrecisionOf(const formats::MeasuredRun& run) {
  const TrainingSetup& setup = run.setup;
  if (!setup.fp8_products) return "16 bits";
  switch (setup.fp8_recipe) {
    case Fp8Recipe::kTensor:
      return "fp8";
    case Fp8Recipe::kBlocks:
      return "mxfp8";
    case Fp8Recipe::kFp4:
      return "nvfp4";
    case Fp8Recipe::kFp4Plain:
      return "nvfp4-plain";
  }
  return "";
}

// Returns the parts of the layout that are not 1: "tp 2 pp 4x2".
std::string LayoutOf(const formats::MeasuredRun& run) {
  const ParallelLayout& p = run.parallel;
  std::vector<std::string> words;
  for (const auto& [name, ways] :
       {std::pair("tp", p.tp), std::pair("pp", p.pp), std::pair("cp", p.cp),
        std::pair("ep", p.ep), std::pair("dp", p.dp)}) {
    if (ways > 1) words.push_back(absl::StrCat(name, " ", ways));
    if (ways > 1 && name == absl::string_view("pp") && run.chunks > 1) {
      absl::StrAppend(&words.back(), "x", run.chunks);
    }
  }
  return words.empty() ? "1 GPU" : absl::StrJoin(words, " ");
}

// Returns the errors that count.
std::vector<double> ErrorsOf(const Quantity& quantity,
                             const std::vector<Row>& rows) {
  std::vector<double> errors;
  for (const Row& row : rows) {
    if (!quantity.fitted(*row.run)) errors.push_back(quantity.error(*row.run));
  }
  return errors;
}

double ShareWithin(const std::vector<double>& errors, double limit) {
  const auto within =
      std::count_if(errors.begin(), errors.end(),
                    [&](double e) { return std::abs(e) <= limit; });
  return errors.empty()
             ? 0
             : static_cast<double>(within) / static_cast<double>(errors.size());
}

// Returns the mean errors of the groups of runs of one cause.
BarChart ErrorsBy(const std::string& cause, const Quantity& quantity,
                  const std::vector<Row>& rows,
                  const std::function<std::string(const Row&)>& group_of) {
  std::map<std::string, std::vector<Row>> groups;
  for (const Row& row : rows) groups[group_of(row)].push_back(row);
  BarChart chart{.title = absl::StrCat("By ", cause)};
  for (const auto& [group, members] : groups) {
    const studies::ErrorSummary e =
        studies::SummarizeErrors(ErrorsOf(quantity, members));
    if (e.count == 0) continue;
    chart.bars.push_back(
        {.label = group,
         .value = e.mean,
         .text = absl::StrFormat("%s of %d", FormatPercent(e.mean), e.count),
         .details = absl::StrFormat(
             "%s: mean %s, median %s, worst %s, mean with sign %s", group,
             FormatPercent(e.mean), FormatPercent(e.median),
             FormatPercent(e.worst), SignedPercent(e.bias))});
  }
  return chart;
}

std::string PointLabel(const Quantity& quantity, const Row& row) {
  const auto [measured, predicted] = quantity.texts(*row.run);
  return absl::StrCat(row.table_name, ": ", row.run->run.name, ", ",
                      LayoutOf(row.run->run), ": measured ", measured,
                      ", predicted ", predicted, " (",
                      SignedPercent(quantity.error(*row.run)),
                      quantity.fitted(*row.run) ? ", used to fit)" : ")");
}

void AppendRows(const Quantity& quantity, std::vector<Row> rows,
                std::string* html) {
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    return std::abs(quantity.error(*a.run)) > std::abs(quantity.error(*b.run));
  });
  const bool fits = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    return quantity.fitted(*row.run);
  });
  std::vector<std::string> head = {"error",    "table",      "run",   "GPU",
                                   "layout",   "microbatch", "batch", "tokens",
                                   "measured", "predicted"};
  if (fits) head.push_back("used");
  Table table(std::move(head), /*left_columns=*/5);
  for (const Row& row : rows) {
    const formats::MeasuredRun& run = row.run->run;
    const auto [measured, predicted] = quantity.texts(*row.run);
    std::vector<std::string> cells = {SignedPercent(quantity.error(*row.run)),
                                      row.table_name,
                                      run.name,
                                      row.device,
                                      LayoutOf(run),
                                      absl::StrCat(run.microbatch),
                                      absl::StrCat(run.global_batch),
                                      absl::StrCat(run.sequence),
                                      measured,
                                      predicted};
    if (fits) cells.push_back(quantity.fitted(*row.run) ? "fit" : "error");
    table.AddRow(std::move(cells));
  }
  const size_t end = table.rows().size();
  const size_t open = std::min(end, kOpenRows + 1);
  absl::StrAppend(
      html, "<div class=\"runs\"><h3>Runs, the largest error first</h3>\n");
  AppendTableRows(table, 1, open, html);
  if (open < end) {
    absl::StrAppend(html, "<details><summary>The other ", end - open,
                    end - open == 1 ? " run" : " runs", "</summary>\n");
    AppendTableRows(table, open, end, html);
    absl::StrAppend(html, "</details>\n");
  }
  absl::StrAppend(html, "</div>\n");
}

void AppendQuantity(const Quantity& quantity, const std::vector<Row>& rows,
                    const std::vector<std::string>& tables, std::string* html) {
  absl::StrAppend(html, "<section><h2>", EscapeHtml(quantity.title),
                  "</h2><div class=\"split\">\n");
  AgreementPlot plot{
      .of = quantity.name, .series = tables, .text = quantity.axis};
  for (const Row& row : rows) {
    const auto [measured, predicted] = quantity.values(*row.run);
    plot.points.push_back({.label = PointLabel(quantity, row),
                           .measured = measured,
                           .predicted = predicted,
                           .series = row.table,
                           .hollow = quantity.fitted(*row.run)});
  }
  AppendAgreement(plot, html);
  std::vector<BarChart> charts;
  if (tables.size() > 1) {
    charts.push_back(ErrorsBy("table", quantity, rows,
                              [](const Row& row) { return row.table_name; }));
  }
  charts.push_back(ErrorsBy("GPU", quantity, rows,
                            [](const Row& row) { return row.device; }));
  charts.push_back(
      ErrorsBy("precision of products", quantity, rows,
               [](const Row& row) { return PrecisionOf(row.run->run); }));
  charts.push_back(ErrorsBy(
      "kind of model", quantity, rows, [](const Row& row) -> std::string {
        return HasExperts(row.run->run.model) ? "experts" : "dense";
      }));
  double most = 1e-9;
  for (const BarChart& chart : charts) {
    for (const BarChart::Bar& bar : chart.bars)
      most = std::max(most, bar.value);
  }
  absl::StrAppend(html, "<div class=\"card\">");
  for (const BarChart& chart : charts) AppendBars(chart, most, html);
  absl::StrAppend(html,
                  "<p class=\"hint\">Mean error, and of how many runs.</p>"
                  "</div></div>\n");
  AppendRows(quantity, rows, html);
  absl::StrAppend(html, "</section>\n");
}

}  // namespace

std::string BacktestPage(const std::vector<studies::TableComparison>& tables,
                         const std::string& command) {
  std::vector<Row> rows;
  std::vector<std::string> names;
  bool fits = false;
  for (const studies::TableComparison& table : tables) {
    for (size_t i = 0; i < table.comparison.runs.size(); ++i) {
      rows.push_back({.run = &table.comparison.runs[i],
                      .table = names.size(),
                      .table_name = table.name,
                      .device = table.devices[i]});
      fits = fits || table.comparison.runs[i].fitted;
    }
    names.push_back(table.name);
  }
  std::vector<PageFigure> figures;
  std::vector<std::pair<Quantity, std::vector<Row>>> parts;
  for (const Quantity& quantity : {StepTimes(), Peaks()}) {
    std::vector<Row> measured;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(measured),
                 [&](const Row& row) { return quantity.measured(*row.run); });
    if (measured.empty()) continue;
    const std::vector<double> errors = ErrorsOf(quantity, measured);
    const studies::ErrorSummary e = studies::SummarizeErrors(errors);
    figures.push_back(
        {absl::StrCat(quantity.name, ", mean"), FormatPercent(e.mean),
         absl::StrCat("error of ", e.count, e.count == 1 ? " run" : " runs")});
    figures.push_back({absl::StrCat(quantity.name, ", median"),
                       FormatPercent(e.median),
                       absl::StrCat("worst ", FormatPercent(e.worst))});
    figures.push_back({absl::StrCat(quantity.short_name, " within 10 %"),
                       FormatPercent(ShareWithin(errors, 0.1), 0),
                       "of these runs"});
    parts.emplace_back(quantity, std::move(measured));
  }
  std::string subtitle = absl::StrCat(
      rows.size(),
      rows.size() == 1 ? " measured run of " : " measured runs of ",
      names.size() == 1 ? names[0] : absl::StrCat(names.size(), " tables"),
      fits ? ", with one scalar fitted for each framework."
           : ", with no scalar fitted.");
  const std::string open = TextWithoutHost(tables);
  if (!open.empty()) absl::StrAppend(&subtitle, " ", open);
  std::string html;
  AppendPageStart({.title = "Predicted and measured training steps",
                   .subtitle = subtitle,
                   .command = command,
                   .figures = figures},
                  &html);
  for (const auto& [quantity, measured] : parts) {
    AppendQuantity(quantity, measured, names, &html);
  }
  std::vector<std::string> notes = {
      "An error is predicted over measured, less 1. docs/validation.md says "
      "which rows were in view when constants were chosen."};
  if (fits) {
    notes.push_back(
        "Hollow marks: runs that a scalar was fitted on, which count in no "
        "error of step time.");
  }
  formats::JsonWriter json;
  json.BeginObject().Key("command").String(command);
  json.Key("steps").BeginArray().EndArray().EndObject();
  AppendPageEnd(notes, json.text(), &html);
  return html;
}

}  // namespace pipeloom::cli
