#include "cli/report/backtest_tables.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/table.h"
#include "formats/profile/measured_runs.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

std::string ScalarText(const studies::FrameworkScalar& s) {
  const std::string value = s.kind == formats::FittedScalar::kHost
                                ? absl::StrFormat("%.2f us a kernel", s.value)
                                : absl::StrFormat("x %.3f", s.value);
  if (s.fitted_rows == 0) return value + ", not fitted";
  return absl::StrFormat("%s, fitted on %d rows of %d of %d configurations",
                         value, s.fitted_rows, s.fitted_configurations,
                         s.configurations);
}

std::vector<double> Errors(const studies::Comparison& comparison,
                           const std::string& framework, bool peak) {
  std::vector<double> errors;
  for (const studies::ComparedRun& c : comparison.runs) {
    if (!framework.empty() && c.run.framework != framework) continue;
    if (peak ? c.run.peak_allocated == Bytes(0) : c.fitted) continue;
    errors.push_back(peak ? c.peak_error() : c.step_error());
  }
  return errors;
}

std::string LayoutText(const formats::MeasuredRun& run) {
  const ParallelLayout& p = run.parallel;
  return absl::StrFormat("tp%d pp%d%s cp%d ep%d dp%d", p.tp, p.pp,
                         run.chunks > 1 ? absl::StrCat("x", run.chunks) : "",
                         p.cp, p.ep, p.dp);
}

double Gib(Bytes bytes) {
  return static_cast<double>(bytes.count()) /
         static_cast<double>(int64_t{1} << 30);
}

void WriteSummary(const std::vector<double>& errors,
                  formats::JsonWriter& json) {
  const studies::ErrorSummary e = studies::SummarizeErrors(errors);
  json.BeginObject().Key("rows").Int(e.count);
  json.Key("mean").Number(e.mean).Key("median").Number(e.median);
  json.Key("worst").Number(e.worst).Key("bias").Number(e.bias);
  json.EndObject();
}

}  // namespace

std::string BacktestTable(const studies::Comparison& comparison) {
  Table rows(
      {"line", "run", "layout", "micro", "batch", "seq", "measured ms",
       "emulated ms", "error", "peak GiB", "emulated GiB", "error", "used"},
      3);
  for (const studies::ComparedRun& c : comparison.runs) {
    const bool peak = c.run.peak_allocated > Bytes(0);
    rows.AddRow(
        {absl::StrCat(c.run.line), c.run.name, LayoutText(c.run),
         absl::StrCat(c.run.microbatch), absl::StrCat(c.run.global_batch),
         absl::StrCat(c.run.sequence),
         absl::StrFormat("%.1f", ToMilliseconds(c.run.step_time)),
         absl::StrFormat("%.1f", ToMilliseconds(c.emulated.step_time)),
         absl::StrFormat("%+.1f %%", 100 * c.step_error()),
         peak ? absl::StrFormat("%.2f", Gib(c.run.peak_allocated)) : "-",
         peak ? absl::StrFormat("%.2f", Gib(c.emulated.peak_allocated)) : "-",
         peak ? absl::StrFormat("%+.1f %%", 100 * c.peak_error()) : "-",
         c.fitted ? "fit" : "error"});
  }
  Table sums({"framework", "of", "rows", "mean", "median", "worst", "bias"}, 2);
  const auto add = [&](const std::string& name, const std::string& framework) {
    for (const bool peak : {false, true}) {
      const studies::ErrorSummary e =
          studies::SummarizeErrors(Errors(comparison, framework, peak));
      if (e.count == 0) continue;
      sums.AddRow({name, peak ? "peak memory" : "step time",
                   absl::StrCat(e.count), FormatPercent(e.mean),
                   FormatPercent(e.median), FormatPercent(e.worst),
                   absl::StrFormat("%+.1f %%", 100 * e.bias)});
    }
  };
  for (const studies::FrameworkScalar& s : comparison.scalars) {
    add(s.framework, s.framework);
  }
  if (comparison.scalars.size() > 1) add("all", "");
  std::string text = absl::StrCat(rows.ToString(), "\n", sums.ToString(),
                                  "\nScalars (rows used to fit count in no "
                                  "error of step time):\n");
  for (const studies::FrameworkScalar& s : comparison.scalars) {
    absl::StrAppend(&text, "  ", s.framework, ": ", ScalarText(s), "\n");
  }
  return text;
}

std::string BacktestJson(const studies::Comparison& comparison) {
  formats::JsonWriter json(true);
  json.BeginObject().Key("runs").BeginArray();
  for (const studies::ComparedRun& c : comparison.runs) {
    json.BeginObject().Key("line").Int(c.run.line);
    json.Key("framework").String(c.run.framework);
    json.Key("run").String(c.run.name);
    json.Key("layout").String(LayoutText(c.run));
    json.Key("measured_step_us").Micros(c.run.step_time);
    json.Key("emulated_step_us").Micros(c.emulated.step_time);
    json.Key("step_error").Number(c.step_error());
    if (c.run.peak_allocated > Bytes(0)) {
      json.Key("measured_peak_bytes").Int(c.run.peak_allocated.count());
      json.Key("emulated_peak_bytes").Int(c.emulated.peak_allocated.count());
      json.Key("peak_error").Number(c.peak_error());
    }
    json.Key("fitted").Bool(c.fitted).EndObject();
  }
  json.EndArray().Key("frameworks").BeginArray();
  for (const studies::FrameworkScalar& s : comparison.scalars) {
    json.BeginObject().Key("framework").String(s.framework);
    json.Key("scalar").String(
        s.kind == formats::FittedScalar::kHost ? "host_us" : "stretch");
    json.Key("value").Number(s.value);
    json.Key("fitted_rows").Int(s.fitted_rows);
    json.Key("fitted_configurations").Int(s.fitted_configurations);
    json.Key("configurations").Int(s.configurations);
    json.Key("step_time");
    WriteSummary(Errors(comparison, s.framework, false), json);
    json.Key("peak_memory");
    WriteSummary(Errors(comparison, s.framework, true), json);
    json.EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

std::string BacktestCsv(const studies::Comparison& comparison) {
  std::string text =
      "line,framework,run,measured_ms,emulated_ms,step_error,measured_gib,"
      "emulated_gib,used\n";
  for (const studies::ComparedRun& c : comparison.runs) {
    std::string name;
    for (const char ch : c.run.name)
      name += ch == '"' ? "\"\"" : std::string(1, ch);
    absl::StrAppendFormat(
        &text, "%d,%s,\"%s\",%.3f,%.3f,%.4f,%.3f,%.3f,%s\n", c.run.line,
        c.run.framework, name, ToMilliseconds(c.run.step_time),
        ToMilliseconds(c.emulated.step_time), c.step_error(),
        Gib(c.run.peak_allocated), Gib(c.emulated.peak_allocated),
        c.fitted ? "fit" : "error");
  }
  return text;
}

absl::Status PrintBacktest(const BacktestFlags& flags, const Context& context) {
  studies::BacktestOptions options = flags.options;
  PIPELOOM_ASSIGN_OR_RETURN(options.data_dir, FindDataDir(options.data_dir));
  PIPELOOM_ASSIGN_OR_RETURN(
      const studies::Comparison comparison,
      studies::RunBacktest(
          options, [](const std::string& path) { return ReadFile(path); }));
  if (!flags.csv_out.empty()) {
    PIPELOOM_RETURN_IF_ERROR(
        WriteFileAtomically(flags.csv_out, BacktestCsv(comparison)));
  }
  context.print(flags.json ? BacktestJson(comparison)
                           : BacktestTable(comparison));
  return absl::OkStatus();
}

}  // namespace pipeloom::cli
