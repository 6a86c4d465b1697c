// `pipeloom backtest`: compares measured training runs with planned steps.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/input/job_input.h"
#include "cli/report/backtest_tables.h"

namespace pipeloom::cli {
namespace {

// Returns the sorted names of the tables of measured runs that ship: the CSV
// files of the folder whose columns are those of runs.
absl::StatusOr<std::vector<std::string>> ShippedTables(
    const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".csv") continue;
    PIPELOOM_ASSIGN_OR_RETURN(const std::string text,
                              ReadFile(it->path().string()));
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      if (absl::StartsWith(line, "#")) continue;
      if (absl::StartsWith(line, "framework,")) {
        names.push_back(it->path().stem().string());
      }
      break;
    }
  }
  if (names.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has no table of measured runs; name one"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

class BacktestCommand : public Command {
 public:
  CommandText text() const override {
    return {"backtest", "[TABLE...] [options]",
            "step time and memory of measured runs as planning sees them",
            "Every measured run of a table becomes a job, which is priced, "
            "scheduled and emulated as `plan` does it, with the run's own "
            "layers by stage and recomputation. TABLE is a CSV file "
            "(docs/validation.md says the columns) or the name of one that "
            "ships; without any, all that ship are taken. Errors of step time "
            "and peak memory are shown by row and framework for one table, by "
            "table for several.\n\n"
            "Without --fit no figure of the model is changed. With it one "
            "scalar a framework is fitted on a fifth of its configurations, "
            "which then count in no error."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    flags.push_back({"fit", &flags_.fit, "", "fit one scalar a framework"});
    flags.push_back({"costs",
                     &flags_.costs,
                     "SOURCE",
                     "of operators: the profile of the device (--profile, or "
                     "one that ships), where there is one, or its peak rates "
                     "alone",
                     {"profile", "roofline"}});
    flags.push_back(ProfileFlag(&flags_.profile_files));
    flags.push_back(
        OutputFlag("csv", &flags_.csv_out, "write the comparison as CSV"));
    flags.push_back(OutputFlag(
        "report", &flags_.report,
        "write an HTML page: predicted against measured, errors by cause"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    flags.push_back(DataDirFlag(&flags_.data_dir));
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(flags_.data_dir, FindDataDir(flags_.data_dir));
    PIPELOOM_ASSIGN_OR_RETURN(flags_.files, Files(args));
    flags_.set = args.size() != 1;
    flags_.json = format_ == "json";
    return PrintBacktest(flags_, context);
  }

 private:
  // Returns the files of the tables that are named: a path has a slash or ends
  // in ".csv".
  absl::StatusOr<std::vector<std::string>> Files(
      const std::vector<std::string>& args) const {
    const std::string folder = absl::StrCat(flags_.data_dir, "/validation");
    std::vector<std::string> files;
    std::vector<std::string> shipped;
    for (const std::string& table : args) {
      if (absl::StrContains(table, '/') || absl::EndsWith(table, ".csv")) {
        files.push_back(table);
        continue;
      }
      if (shipped.empty()) {
        PIPELOOM_ASSIGN_OR_RETURN(shipped, ShippedTables(folder));
      }
      if (!std::binary_search(shipped.begin(), shipped.end(), table)) {
        return UsageError(
            absl::StrCat("there is no table \"", table, "\"; there is ",
                         absl::StrJoin(shipped, ", "),
                         "; the name of a file has a slash or ends in .csv"));
      }
      files.push_back(absl::StrCat(folder, "/", table, ".csv"));
    }
    if (!args.empty()) return files;
    PIPELOOM_ASSIGN_OR_RETURN(shipped, ShippedTables(folder));
    for (const std::string& name : shipped) {
      files.push_back(absl::StrCat(folder, "/", name, ".csv"));
    }
    return files;
  }

  BacktestFlags flags_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeBacktestCommand() {
  return std::make_unique<BacktestCommand>();
}

}  // namespace pipeloom::cli
