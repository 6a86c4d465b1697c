#include "cli/report/layout_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/console/table.h"
#include "cli/report/partition_file.h"

namespace pipeloom::cli {
namespace {

constexpr size_t kRowsShown = 12;

std::string FateWords(planner::LayoutFate fate) {
  switch (fate) {
    case planner::LayoutFate::kNoMemory:
      return "does not fit";
    case planner::LayoutFate::kBound:
      return "cannot be faster";
    case planner::LayoutFate::kNotTried:
      return "not tried";
    case planner::LayoutFate::kScreened:
      return "screened";
    case planner::LayoutFate::kSearched:
      return "searched";
  }
  return "";
}

}  // namespace

std::string LayoutWords(const ParallelLayout& layout,
                        const std::vector<ModuleParallelism>& modules) {
  std::string words = absl::StrFormat("tp %d", layout.tp);
  if (layout.cp > 1) absl::StrAppend(&words, " cp ", layout.cp);
  if (layout.ep > 1) absl::StrAppend(&words, " ep ", layout.ep);
  absl::StrAppendFormat(&words, " pp %d dp %d", layout.pp, layout.dp);
  for (const ModuleParallelism& own : modules) {
    absl::StrAppend(&words, ", ", own.module);
    if (own.tp > 0) absl::StrAppend(&words, " tp ", own.tp);
    if (own.cp > 0 && layout.cp > 1) absl::StrAppend(&words, " cp ", own.cp);
  }
  return words;
}

void WriteLayouts(const std::vector<planner::LayoutOutcome>& layouts,
                  formats::JsonWriter* json) {
  json->Key("layouts").BeginArray();
  for (const planner::LayoutOutcome& o : layouts) {
    json->BeginObject();
    WriteLayout(o.layout, o.modules, o.microbatches, json);
    if (o.step_time > kZero) json->Key("step_time_us").Micros(o.step_time);
    if (o.bound > kZero) json->Key("lower_bound_us").Micros(o.bound);
    json->Key("outcome").String(FateWords(o.fate)).EndObject();
  }
  json->EndArray();
}

std::string LayoutReport(const planner::LayoutSearchResult& result) {
  const auto time = [](const planner::LayoutOutcome& o,
                       planner::LayoutFate fate) {
    return o.fate == fate && o.step_time > kZero ? FormatDuration(o.step_time)
                                                 : std::string("-");
  };
  // Times of one step and means over sample steps are not compared: they are of
  // other samples.
  Table table({"layout", "microbatches", "step time, mean", "time of one step",
               "bound", ""});
  for (const planner::LayoutOutcome& o : result.layouts) {
    if (table.rows().size() > kRowsShown) break;
    table.AddRow(
        {LayoutWords(o.layout, o.modules), absl::StrCat(o.microbatches),
         time(o, planner::LayoutFate::kSearched),
         time(o, planner::LayoutFate::kScreened),
         o.bound > kZero ? FormatDuration(o.bound) : "-", FateWords(o.fate)});
  }
  std::string text = table.ToString();
  if (result.layouts.size() > kRowsShown) {
    const auto count = [&](planner::LayoutFate fate) {
      return std::count_if(
          result.layouts.begin() + static_cast<int64_t>(kRowsShown),
          result.layouts.end(),
          [&](const planner::LayoutOutcome& o) { return o.fate == fate; });
    };
    absl::StrAppendFormat(
        &text, "and %d more: %d slower, %d cannot be faster, %d do not fit\n",
        result.layouts.size() - kRowsShown,
        count(planner::LayoutFate::kScreened) +
            count(planner::LayoutFate::kSearched),
        count(planner::LayoutFate::kBound),
        count(planner::LayoutFate::kNoMemory));
  }
  return text;
}

}  // namespace pipeloom::cli
