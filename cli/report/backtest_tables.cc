#include "cli/report/backtest_tables.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "formats/profile/measured_runs.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

std::string ScalarText(const studies::FrameworkScalar& s) {
  const std::string value = s.kind == formats::FittedScalar::kHost
                                ? absl::StrFormat("%.2f us a kernel", s.value)
                                : absl::StrFormat("x %.3f", s.value);
  if (s.fitted_rows == 0) {
    if (s.configurations == 0) return value + ", not fitted";
    if (s.configurations >= studies::kFewestConfigurations) {
      return absl::StrFormat(
          "%s, not fitted: all %d configurations are held out", value,
          s.configurations);
    }
    return absl::StrFormat(
        "%s, not fitted: %d configuration%s; needs %d, or rows with split fit",
        value, s.configurations, s.configurations == 1 ? "" : "s",
        studies::kFewestConfigurations);
  }
  return absl::StrFormat(
      "%s, fitted on %d rows of %d of %d configurations%s", value,
      s.fitted_rows, s.fitted_configurations, s.configurations,
      s.at_end ? absl::StrFormat("; an end of what is tried, 0 to %d us, so "
                                 "the host alone does not explain the times",
                                 studies::kMostHostUs)
               : "");
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

void WriteSummary(const studies::ErrorSummary& e, formats::JsonWriter& json) {
  json.BeginObject().Key("rows").Int(e.count);
  json.Key("mean").Number(e.mean).Key("median").Number(e.median);
  json.Key("worst").Number(e.worst).Key("bias").Number(e.bias);
  json.EndObject();
}

BacktestErrors ErrorsOf(const studies::Comparison& comparison,
                        const std::string& framework = "") {
  BacktestErrors errors;
  errors.Add(comparison, framework);
  return errors;
}

// Writes the keys of a table's comparison into an object.
void WriteComparison(const studies::Comparison& comparison,
                     formats::JsonWriter& json) {
  json.Key("runs").BeginArray();
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
    json.Key("fitted").Bool(c.fitted);
    json.Key("prices").String(c.prices).EndObject();
  }
  json.EndArray().Key("frameworks").BeginArray();
  for (const studies::FrameworkScalar& s : comparison.scalars) {
    json.BeginObject().Key("framework").String(s.framework);
    json.Key("scalar").String(
        s.kind == formats::FittedScalar::kHost ? "host_us" : "stretch");
    json.Key("value").Number(s.value);
    json.Key("at_end_of_grid").Bool(s.at_end);
    json.Key("fitted_rows").Int(s.fitted_rows);
    json.Key("fitted_configurations").Int(s.fitted_configurations);
    json.Key("configurations").Int(s.configurations);
    const BacktestErrors errors = ErrorsOf(comparison, s.framework);
    json.Key("step_time");
    WriteSummary(errors.step(), json);
    json.Key("peak_memory");
    WriteSummary(errors.peak(), json);
    json.EndObject();
  }
  json.EndArray();
}

std::string QuotedCsv(const std::string& text) {
  std::string quoted = "\"";
  for (const char ch : text) {
    quoted += ch == '"' ? "\"\"" : std::string(1, ch);
  }
  return quoted + "\"";
}

constexpr char kCsvColumns[] =
    "line,framework,run,measured_ms,emulated_ms,step_error,measured_gib,"
    "emulated_gib,used,prices\n";

std::string CsvRow(const studies::ComparedRun& c) {
  return absl::StrFormat(
      "%d,%s,%s,%.3f,%.3f,%.4f,%.3f,%.3f,%s,%s\n", c.run.line, c.run.framework,
      QuotedCsv(c.run.name), ToMilliseconds(c.run.step_time),
      ToMilliseconds(c.emulated.step_time), c.step_error(),
      Gib(c.run.peak_allocated), Gib(c.emulated.peak_allocated),
      c.fitted ? "fit" : "error", c.prices);
}

}  // namespace

void BacktestErrors::Add(const studies::ComparedRun& run) {
  if (!run.fitted) step_.push_back(run.step_error());
  if (run.run.peak_allocated > Bytes(0)) peak_.push_back(run.peak_error());
}

void BacktestErrors::Add(const studies::Comparison& comparison,
                         const std::string& framework) {
  for (const studies::ComparedRun& c : comparison.runs) {
    if (framework.empty() || c.run.framework == framework) Add(c);
  }
}

std::string BacktestTable(const studies::Comparison& comparison) {
  Table rows({"line", "run", "layout", "micro", "batch", "seq", "measured ms",
              "emulated ms", "error", "peak GiB", "emulated GiB", "error",
              "used", "prices"},
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
         c.fitted ? "fit" : "error", c.prices});
  }
  Table sums({"framework", "of", "rows", "mean", "median", "worst", "bias"}, 2);
  const auto add = [&](const std::string& name, const std::string& framework) {
    const BacktestErrors errors = ErrorsOf(comparison, framework);
    for (const bool peak : {false, true}) {
      const studies::ErrorSummary e = peak ? errors.peak() : errors.step();
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
  json.BeginObject();
  WriteComparison(comparison, json);
  return json.EndObject().text() + "\n";
}

std::string BacktestCsv(const studies::Comparison& comparison) {
  std::string text = kCsvColumns;
  for (const studies::ComparedRun& c : comparison.runs) {
    absl::StrAppend(&text, CsvRow(c));
  }
  return text;
}

std::string TextWithoutHost(
    const std::vector<studies::TableComparison>& tables) {
  std::vector<std::string> names;
  for (const studies::TableComparison& table : tables) {
    const std::vector<studies::FrameworkScalar>& scalars =
        table.comparison.scalars;
    if (std::any_of(scalars.begin(), scalars.end(),
                    [](const studies::FrameworkScalar& s) {
                      return s.kind == formats::FittedScalar::kHost &&
                             s.configurations == 0 && s.value == 0;
                    })) {
      names.push_back(table.name);
    }
  }
  if (names.empty()) return "";
  return absl::StrCat("The host takes no time to launch a kernel in ",
                      absl::StrJoin(names, ", "),
                      ", whose rows leave it open; --fit fits it.");
}

// Returns a sentence that names the tables that were not measured; "" if there
// are none.
std::string TextOfPredictions(
    const std::vector<studies::TableComparison>& tables) {
  std::vector<std::string> names;
  for (const studies::TableComparison& table : tables) {
    if (table.predicted) names.push_back(table.name);
  }
  if (names.empty()) return "";
  return absl::StrCat(
      "Not measured but predicted by another program, and not "
      "among all: ",
      absl::StrJoin(names, ", "), ".");
}

std::string BacktestSetTable(
    const std::vector<studies::TableComparison>& tables) {
  Table sums({"table", "runs", "step time", "worst", "runs with memory",
              "peak memory", "worst"});
  const auto add = [&](const std::string& name, const BacktestErrors& errors) {
    const studies::ErrorSummary step = errors.step();
    const studies::ErrorSummary peak = errors.peak();
    const auto percent = [](const studies::ErrorSummary& e, double value) {
      return e.count > 0 ? FormatPercent(value) : std::string("-");
    };
    sums.AddRow({name, absl::StrCat(step.count), percent(step, step.mean),
                 percent(step, step.worst), absl::StrCat(peak.count),
                 percent(peak, peak.mean), percent(peak, peak.worst)});
  };
  BacktestErrors all;
  std::string scalars;
  for (const studies::TableComparison& table : tables) {
    add(table.name, ErrorsOf(table.comparison));
    if (!table.predicted) all.Add(table.comparison);
    for (const studies::FrameworkScalar& s : table.comparison.scalars) {
      if (s.configurations == 0) continue;
      absl::StrAppend(&scalars, "  ", table.name, ", ", s.framework, ": ",
                      ScalarText(s), "\n");
    }
  }
  add("all", all);
  std::string text = sums.ToString();
  if (!scalars.empty()) {
    absl::StrAppend(&text,
                    "\nScalars (rows used to fit count in no error of step "
                    "time):\n",
                    scalars);
  }
  const std::string predicted = TextOfPredictions(tables);
  if (!predicted.empty()) absl::StrAppend(&text, "\n", predicted, "\n");
  const std::string open = TextWithoutHost(tables);
  if (!open.empty()) absl::StrAppend(&text, "\n", open, "\n");
  return text;
}

std::string BacktestSetJson(
    const std::vector<studies::TableComparison>& tables) {
  formats::JsonWriter json(true);
  const auto write = [&](const BacktestErrors& errors) {
    json.Key("step_time");
    WriteSummary(errors.step(), json);
    json.Key("peak_memory");
    WriteSummary(errors.peak(), json);
  };
  BacktestErrors all;
  json.BeginObject().Key("tables").BeginArray();
  for (const studies::TableComparison& table : tables) {
    json.BeginObject().Key("table").String(table.name);
    write(ErrorsOf(table.comparison));
    WriteComparison(table.comparison, json);
    json.EndObject();
    if (!table.predicted) all.Add(table.comparison);
  }
  json.EndArray().Key("all").BeginObject();
  write(all);
  return json.EndObject().EndObject().text() + "\n";
}

std::string BacktestSetCsv(
    const std::vector<studies::TableComparison>& tables) {
  std::string text = absl::StrCat("table,", kCsvColumns);
  for (const studies::TableComparison& table : tables) {
    for (const studies::ComparedRun& c : table.comparison.runs) {
      absl::StrAppend(&text, QuotedCsv(table.name), ",", CsvRow(c));
    }
  }
  return text;
}

namespace {

// Returns the profiles that the options ask for. A UsageError: one that is
// given is of no device of the tables.
absl::StatusOr<formats::DeviceProfiles> ProfilesOf(
    const BacktestFlags& flags, const std::string& data_dir,
    const std::vector<studies::MeasuredTable>& tables,
    const formats::FileReader& read) {
  const std::vector<std::string>& files = flags.profile_files.values;
  if (flags.costs == "roofline") {
    if (files.empty()) return formats::DeviceProfiles();
    return UsageError(
        "--profile and --costs roofline: give one of them, as peak rates need "
        "no profile");
  }
  formats::DeviceProfiles profiles(data_dir, read);
  for (const std::string& file : files) {
    PIPELOOM_RETURN_IF_ERROR(profiles.Add(file));
  }
  std::set<std::string> devices;
  for (const studies::MeasuredTable& table : tables) {
    for (const ClusterSpec& cluster : table.clusters) {
      devices.insert(cluster.device.name);
    }
  }
  for (const auto& given : profiles.given()) {
    bool is_used = false;
    for (const std::string& device : devices) {
      PIPELOOM_ASSIGN_OR_RETURN(const auto found, profiles.Find(device));
      is_used = is_used || found == given.profile;
    }
    if (is_used) continue;
    return UsageError(absl::StrCat(
        "--profile ", given.file, ": is of device ", given.profile->device,
        ", and the tables' clusters have ", absl::StrJoin(devices, ", ")));
  }
  return profiles;
}

}  // namespace

absl::Status PrintBacktest(const BacktestFlags& flags, const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(flags.data_dir));
  const studies::StudyContext study = StudyContextOf(context);
  const absl::StatusOr<std::vector<studies::MeasuredTable>> loaded =
      studies::LoadTables(flags.files, data_dir, study.read);
  if (!loaded.ok()) return UsageError(loaded.status().message());
  studies::BacktestOptions options{.fit = flags.fit};
  PIPELOOM_ASSIGN_OR_RETURN(options.profiles,
                            ProfilesOf(flags, data_dir, *loaded, study.read));
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<studies::TableComparison> tables,
                            studies::CompareTables(*loaded, options, study));
  const studies::Comparison& first = tables.front().comparison;
  if (!flags.csv_out.empty()) {
    PIPELOOM_RETURN_IF_ERROR(
        WriteFileAtomically(flags.csv_out, flags.set ? BacktestSetCsv(tables)
                                                     : BacktestCsv(first)));
  }
  if (!flags.report.empty()) {
    PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
        flags.report, BacktestPage(tables, context.command_line)));
  }
  if (flags.set) {
    context.print(flags.json ? BacktestSetJson(tables)
                             : BacktestSetTable(tables));
  } else {
    context.print(flags.json ? BacktestJson(first) : BacktestTable(first));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::cli
