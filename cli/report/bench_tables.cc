#include "cli/report/bench_tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/text/json_writer.h"
#include "studies/bench/entrants.h"

namespace pipeloom::cli {
namespace {

std::string KnownTime(Duration time) {
  return time > kZero ? FormatDuration(time) : "-";
}

void WriteKnown(Duration time, formats::JsonWriter* json) {
  if (time > kZero) {
    json->Micros(time);
  } else {
    json->Null();
  }
}

// Returns a time with its excess over the bound: "9.27 s +1.10 %".
std::string Cell(const studies::BenchRow* row, Duration bound) {
  if (row == nullptr) return "-";
  if (bound == kZero) return FormatDuration(row->step_time);
  return absl::StrFormat(
      "%s +%s", FormatDuration(row->step_time),
      FormatPercent(studies::ExcessRatio(row->step_time, bound), 2));
}

std::string MarkdownOf(const Table& table) {
  std::string text;
  for (size_t i = 0; i < table.rows().size(); ++i) {
    text += "|";
    for (const std::string& cell : table.rows()[i]) {
      absl::StrAppend(&text, " ", cell, " |");
    }
    text += "\n";
    if (i > 0) continue;
    text += "|";
    for (size_t c = 0; c < table.rows()[0].size(); ++c) {
      text += static_cast<int>(c) < table.left_columns() ? " --- |" : " ---: |";
    }
    text += "\n";
  }
  return text;
}

}  // namespace

Table SummaryTable(const std::vector<studies::BenchResult>& results) {
  Table table({"schedule", "solved", "best of all", "over the best",
               "worst over the best", "over the bound", "evaluations/s"});
  for (const studies::Entrant& entrant : studies::EntrantsOf(results)) {
    int tried = 0;
    int bounded = 0;  // Solved ones with a bound.
    double over_bound = 0;
    double evaluations = 0;
    double seconds = 0;
    for (const studies::BenchResult& result : results) {
      for (const studies::BenchRow& row : result.rows) {
        if (!entrant.Is(row)) continue;
        ++tried;
        if (!row.status.ok()) continue;
        if (const Duration bound = result.lower_bound(); bound > kZero) {
          ++bounded;
          over_bound += studies::ExcessRatio(row.step_time, bound);
        }
        evaluations += static_cast<double>(row.evaluations);
        seconds += ToSeconds(row.search_time);
      }
    }
    const std::vector<double> excess = studies::ExcessOf(entrant, results);
    if (excess.empty()) {
      std::vector<std::string> cells(table.rows()[0].size(), "-");
      cells[0] = entrant.label();
      cells[1] = absl::StrCat("0 of ", tried);
      table.AddRow(std::move(cells));
      continue;
    }
    const auto n = static_cast<double>(excess.size());
    const auto wins = std::count_if(excess.begin(), excess.end(),
                                    [](double e) { return e < 1e-6; });
    table.AddRow(
        {entrant.label(), absl::StrCat(excess.size(), " of ", tried),
         absl::StrCat(wins),
         FormatPercent(std::accumulate(excess.begin(), excess.end(), 0.0) / n,
                       2),
         FormatPercent(excess.back(), 2),
         bounded > 0 ? FormatPercent(over_bound / bounded, 2) : "-",
         entrant.budget > kZero && seconds > 0
             ? absl::StrFormat("%.0f", evaluations / seconds)
             : "-"});
  }
  return table;
}

Table ProblemTable(const std::vector<studies::BenchResult>& results) {
  std::vector<studies::Entrant> searches;
  for (const studies::Entrant& entrant : studies::EntrantsOf(results)) {
    if (entrant.budget > kZero) searches.push_back(entrant);
  }
  std::vector<std::string> header = {"problem",    "tasks", "bound",
                                     "best known", "peer",  "best classic"};
  for (const studies::Entrant& entrant : searches)
    header.push_back(entrant.label());
  Table table(header);
  for (const studies::BenchResult& result : results) {
    if (!result.status.ok()) {
      table.AddRow({result.problem.name, std::string(result.status.message())});
      continue;
    }
    const Duration bound = result.lower_bound();
    const studies::BenchRow* classic = studies::BestClassic(result);
    const formats::SuiteProblem& problem = result.problem;
    std::vector<std::string> cells = {
        problem.name,
        result.tasks > 0 ? absl::StrCat(result.tasks) : "-",
        KnownTime(bound),
        KnownTime(problem.best_known),
        problem.peer > kZero
            ? absl::StrCat(FormatDuration(problem.peer), " ", problem.peer_name)
            : "-",
        classic != nullptr ? absl::StrCat(FormatDuration(classic->step_time),
                                          " ", classic->schedule)
                           : "-"};
    for (const studies::Entrant& entrant : searches) {
      cells.push_back(
          Cell(result.Find(entrant.schedule, entrant.budget), bound));
    }
    table.AddRow(std::move(cells));
  }
  return table;
}

std::vector<std::string> BenchNotes(
    const std::vector<studies::BenchResult>& results) {
  std::vector<std::string> notes;
  for (const studies::BenchResult& result : results) {
    if (const absl::Status why = result.unsolved(); !why.ok()) {
      notes.push_back(
          absl::StrCat(result.problem.name, ": no schedule: ", why.message()));
    }
    const formats::SuiteProblem& problem = result.problem;
    for (const auto& [field, time] :
         {std::pair{"best_known_us", problem.best_known},
          std::pair{"peer_us", problem.peer}}) {
      if (result.IsPossible(time)) continue;
      notes.push_back(absl::StrFormat(
          "%s: %s is %s, but no schedule is shorter than %s: it is of another "
          "problem, and not counted as the best",
          problem.name, field, FormatDuration(time),
          FormatDuration(result.lower_bound())));
    }
    for (const studies::BenchRow& row : result.rows) {
      if (!row.is_answer || row.status.ok()) continue;
      notes.push_back(absl::StrCat(result.problem.name, ": the answer of ",
                                   row.schedule,
                                   " does not count: ", row.status.message()));
    }
  }
  return notes;
}

std::string BenchJson(const std::vector<studies::BenchResult>& results,
                      const std::string& source) {
  formats::JsonWriter json(true);
  json.BeginObject().Key("source").String(source);
  json.Key("problems").BeginArray();
  for (const studies::BenchResult& result : results) {
    json.BeginObject().Key("name").String(result.problem.name);
    json.Key("family").String(result.problem.family);
    if (!result.status.ok()) {
      json.Key("error").String(result.status.message()).EndObject();
      continue;
    }
    json.Key("tasks").Int(result.tasks);
    json.Key("lower_bound_us");
    WriteKnown(result.lower_bound(), &json);
    json.Key("best_us");
    WriteKnown(result.best(), &json);
    json.Key("best_known_us");
    WriteKnown(result.problem.best_known, &json);
    json.Key("rows").BeginArray();
    for (const studies::BenchRow& row : result.rows) {
      json.BeginObject().Key("schedule").String(row.schedule);
      json.Key("budget_us").Micros(row.budget);
      if (!row.status.ok()) {
        json.Key("error").String(row.status.message()).EndObject();
        continue;
      }
      json.Key("step_time_us").Micros(row.step_time);
      json.Key("lower_bound_us");
      WriteKnown(row.lower_bound, &json);
      json.Key("search_us").Micros(row.search_time);
      json.Key("evaluations").Int(row.evaluations).EndObject();
    }
    json.EndArray().EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

std::string BenchMarkdown(const std::vector<studies::BenchResult>& results,
                          const std::string& command) {
  std::string text =
      absl::StrCat("`", command, "`\n\n", MarkdownOf(SummaryTable(results)),
                   "\n", MarkdownOf(ProblemTable(results)));
  const std::vector<std::string> notes = BenchNotes(results);
  if (!notes.empty()) absl::StrAppend(&text, "\n");
  for (const std::string& note : notes)
    absl::StrAppend(&text, "- ", note, "\n");
  return text;
}

}  // namespace pipeloom::cli
