// `pipeloom bench`: the schedule-search benchmark suite.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/planning_flags.h"
#include "cli/report/bench_tables.h"
#include "formats/graph/problem_suite.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "studies/bench/bench_journal.h"
#include "studies/bench/bench_runs.h"
#include "studies/bench/random_problems.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

class BenchCommand : public Command {
 public:
  CommandText text() const override {
    return {"bench", "[GRAPH...] [options]",
            "the schedule-search benchmark: problems, schedules, budgets",
            "Runs every schedule on every problem of a suite (shipped: uniform "
            "and multimodal pipelines, tight memory, communication, and steps "
            "of shipped jobs) and compares with the lower bound, with the best "
            "known schedule and with other programs' answers. Schedules that "
            "search get each budget; searches other than pipeloom at most 1 s "
            "on graphs. The whole takes about ten minutes; --budgets 100ms "
            "about one.\n\n"
            "--out writes results.json, results.md and index.html into a "
            "folder. Problems and answers of your own: docs/bench.md."};
  }

  std::vector<Flag> Flags() override {
    return {{"suite", &suite_, "FILE", "the problems; without it, the shipped"},
            {"graphs", &graphs_, "FILE,...",
             "the same as the arguments: TaskGraph files to add"},
            {"random", &random_, "SET:N,...",
             "random pipelines instead of the shipped problems: the first N of "
             "the set train, on which the search may be tuned, or of test"},
            {"problems", &filter_, "TEXT",
             "only problems whose name or family contains TEXT"},
            StrategiesFlag(&schedules_, "which ones; without it, all"),
            {"budgets", &budgets_, "TIME,...", "what a search gets"},
            {"answers", &answers_, "NAME=DIR,...",
             "answers of other programs: DIR/PROBLEM.json"},
            {"seed", &seed_, "N", "of the searches", {}, 0},
            {"threads", &threads_, "N", "0: one a core", {}, 0, 1024},
            OutputFlag("out", &out_, "write tables, JSON and a page",
                       Output::kFolder),
            DataDirFlag(&data_dir_),
            {"format", &format_, "FORMAT", "of the output", {"table", "json"}}};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    graphs_.insert(graphs_.end(), args.begin(), args.end());
    PIPELOOM_ASSIGN_OR_RETURN(const studies::BenchOptions options, Options());
    PIPELOOM_ASSIGN_OR_RETURN(const formats::ProblemSuite suite,
                              Problems(options.data_dir));
    const studies::StudyContext study = StudyContextOf(context);
    studies::BenchJournal journal;
    if (!out_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(MakeFolder(out_));
      const std::string path = absl::StrCat(out_, "/journal");
      PIPELOOM_ASSIGN_OR_RETURN(journal,
                                studies::BenchJournal::Open(path, study.read));
      if (journal.size() > 0) {
        context.warn(absl::StrFormat(
            "note: %d outcomes of an interrupted run are in %s; remove it to "
            "begin anew",
            journal.size(), path));
      }
    }
    const Duration most = studies::MostSearchTime(suite.problems, options);
    if (most > kZero) {
      context.warn(absl::StrCat("note: the searches take at most ",
                                FormatDuration(most)));
    }
    const absl::StatusOr<std::vector<studies::BenchResult>> ran =
        studies::RunBench(suite.problems, options, study, &journal);
    if (absl::IsCancelled(ran.status())) {
      context.warn(out_.empty()
                       ? "with --out DIR what is done would not be lost"
                       : "the same command goes on from there");
    }
    PIPELOOM_RETURN_IF_ERROR(ran.status());
    const std::vector<studies::BenchResult>& results = *ran;
    const std::string json = BenchJson(results, suite.source);
    if (!out_.empty()) {
      const std::string command = CommandLine();
      PIPELOOM_RETURN_IF_ERROR(
          WriteFileAtomically(absl::StrCat(out_, "/results.json"), json));
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          absl::StrCat(out_, "/results.md"), BenchMarkdown(results, command)));
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          absl::StrCat(out_, "/index.html"), BenchPage(results, command)));
      PIPELOOM_RETURN_IF_ERROR(journal.Finish());
    }
    if (format_ == "json") {
      context.print(json);
    } else {
      context.print(absl::StrCat(ProblemTable(results).ToString(), "\n",
                                 SummaryTable(results).ToString()));
      const std::vector<std::string> notes = BenchNotes(results);
      if (!notes.empty()) {
        context.print(absl::StrCat("\n", absl::StrJoin(notes, "\n"), "\n"));
      }
      if (!out_.empty()) {
        context.print(absl::StrCat("\nwrote ", out_,
                                   "/results.json, results.md, index.html\n"));
      }
    }
    return CheckRead(results);
  }

 private:
  // Returns an error that names the problems that could not be read.
  static absl::Status CheckRead(
      const std::vector<studies::BenchResult>& results) {
    std::vector<std::string> unread;
    for (const studies::BenchResult& result : results) {
      if (!result.status.ok()) unread.push_back(result.problem.name);
    }
    if (unread.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d of %d problems could not be read: %s", unread.size(),
        results.size(), absl::StrJoin(unread, ", ")));
  }

  absl::StatusOr<studies::BenchOptions> Options() const {
    studies::BenchOptions options;
    options.schedules =
        schedules_.empty() ? studies::UsualSchedules() : schedules_;
    for (const std::string& text : budgets_) {
      const absl::StatusOr<Duration> budget = ParseDuration(text);
      if (!budget.ok() || *budget <= kZero) {
        return UsageError(absl::StrCat("--budgets has \"", text,
                                       "\"; a budget is a time above 0 such as "
                                       "100ms"));
      }
      options.budgets.push_back(*budget);
    }
    std::sort(options.budgets.begin(), options.budgets.end());
    for (const std::string& answer : answers_) {
      const size_t equals = answer.find('=');
      if (equals == 0 || equals == std::string::npos ||
          equals + 1 == answer.size()) {
        return UsageError(absl::StrCat("--answers has \"", answer,
                                       "\"; it must be NAME=DIR"));
      }
      if (!std::filesystem::is_directory(answer.substr(equals + 1))) {
        return UsageError(absl::StrCat("--answers has \"", answer, "\"; ",
                                       answer.substr(equals + 1),
                                       " is no folder"));
      }
      const std::string name = answer.substr(0, equals);
      if (absl::c_linear_search(planner::StrategyNames(), name)) {
        return UsageError(
            absl::StrCat("--answers has \"", answer, "\"; ", name,
                         " is a schedule of Pipeloom's own; give the other "
                         "program another name"));
      }
      if (absl::c_any_of(options.answers,
                         [&](const auto& a) { return a.first == name; })) {
        return UsageError(absl::StrCat("--answers has ", name,
                                       " twice; give each folder a name of "
                                       "its own"));
      }
      options.answers.emplace_back(name, answer.substr(equals + 1));
    }
    options.most_of_others = Seconds(1);
    options.seed = static_cast<uint64_t>(seed_);
    studies::SearchOptions flags;
    flags.threads = threads_;
    options.threads = studies::Settle(flags, SearchSpec()).threads;
    PIPELOOM_ASSIGN_OR_RETURN(options.data_dir, FindDataDir(data_dir_));
    return options;
  }

  // Returns the problems of the suite that are asked for, and the graphs.
  absl::StatusOr<formats::ProblemSuite> Problems(
      const std::string& data_dir) const {
    formats::ProblemSuite suite;
    if (!suite_.empty() || (graphs_.empty() && random_.empty())) {
      const std::string path =
          suite_.empty() ? absl::StrCat(data_dir, "/bench/suite.json") : suite_;
      PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
      PIPELOOM_ASSIGN_OR_RETURN(suite, formats::ParseProblemSuite(text, path));
      for (formats::SuiteProblem& problem : suite.problems) {
        std::string& file = problem.graph_file;
        if (!file.empty() && file[0] != '/') {
          file = absl::StrCat(FolderOf(path), "/", file);
        }
      }
    }
    for (const std::string& set : random_) {
      const absl::StatusOr<std::vector<formats::SuiteProblem>> problems =
          studies::RandomProblems(set);
      if (!problems.ok()) {
        return UsageError(
            absl::StrCat("--random: ", problems.status().message()));
      }
      suite.problems.insert(suite.problems.end(), problems->begin(),
                            problems->end());
    }
    for (const std::string& graph : graphs_) {
      if (!FileExists(graph)) {
        return UsageError(absl::StrCat("GRAPH ", graph,
                                       ": there is no such file; give the file "
                                       "of a task graph"));
      }
      std::string name = graph.substr(graph.rfind('/') + 1);
      if (absl::EndsWith(name, ".json")) name.resize(name.size() - 5);
      suite.problems.push_back({.name = name,
                                .family = "graphs",
                                .pipeline = std::nullopt,
                                .graph_file = graph,
                                .job = std::nullopt});
    }
    std::erase_if(suite.problems, [&](const formats::SuiteProblem& p) {
      return !absl::StrContains(p.name, filter_) &&
             !absl::StrContains(p.family, filter_);
    });
    if (suite.problems.empty()) {
      return UsageError(absl::StrCat("no problem has \"", filter_,
                                     "\" in its name or family"));
    }
    return suite;
  }

  std::string CommandLine() const {
    std::string line = "pipeloom bench";
    if (!suite_.empty()) absl::StrAppend(&line, " --suite ", suite_);
    if (!graphs_.empty()) {
      absl::StrAppend(&line, " --graphs ", absl::StrJoin(graphs_, ","));
    }
    if (!random_.empty()) {
      absl::StrAppend(&line, " --random ", absl::StrJoin(random_, ","));
    }
    if (!filter_.empty())
      absl::StrAppend(&line, " --problems \"", filter_, "\"");
    if (!schedules_.empty()) {
      absl::StrAppend(&line, " --strategies ", absl::StrJoin(schedules_, ","));
    }
    if (!answers_.empty()) {
      absl::StrAppend(&line, " --answers ", absl::StrJoin(answers_, ","));
    }
    absl::StrAppend(&line, " --budgets ", absl::StrJoin(budgets_, ","),
                    " --seed ", seed_, " --threads ", threads_, " --out ",
                    out_);
    return line;
  }

  std::string suite_{};
  std::vector<std::string> graphs_{};
  std::vector<std::string> random_{};
  std::string filter_{};
  std::vector<std::string> schedules_{};
  std::vector<std::string> budgets_ = {"10ms", "100ms", "1s", "10s"};
  std::vector<std::string> answers_{};
  int64_t seed_ = 1;
  int64_t threads_ = 0;
  std::string out_{};
  std::string data_dir_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() {
  return std::make_unique<BenchCommand>();
}

}  // namespace pipeloom::cli
