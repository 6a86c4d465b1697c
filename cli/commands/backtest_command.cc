// `pipeloom backtest`: compares measured training runs with planned steps.
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/report/backtest_tables.h"

namespace pipeloom::cli {
namespace {

class BacktestCommand : public Command {
 public:
  CommandText text() const override {
    return {"backtest", "TABLE.csv [options]",
            "step time and memory of measured runs as planning sees them",
            "Every measured run of a table (workloads/validation holds some; "
            "docs/validation.md says the columns) becomes a job, which is "
            "priced, scheduled and emulated as `plan` does it, with the run's "
            "own layers by stage and recomputation. Errors of step time and "
            "peak memory are shown by row and framework.\n\n"
            "Without --fit no figure of the model is changed. With it one "
            "scalar a framework is fitted on a fifth of its configurations, "
            "which then count in no error."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    flags.push_back(
        {"fit", &flags_.options.fit, "", "fit one scalar a framework"});
    flags.push_back({"costs",
                     &costs_,
                     "SOURCE",
                     "of operators: the profile that ships for the device, "
                     "where there is one, or its peak rates alone",
                     {"profile", "roofline"}});
    flags.push_back(
        OutputFlag("csv", &flags_.csv_out, "write the comparison as CSV"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    flags.push_back(DataDirFlag(&flags_.options.data_dir));
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(flags_.options.file,
                              OneArgument(args, "TABLE.csv"));
    flags_.json = format_ == "json";
    flags_.options.measured = costs_ == "profile";
    return PrintBacktest(flags_, context);
  }

 private:
  BacktestFlags flags_{};
  std::string costs_ = "profile";
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeBacktestCommand() {
  return std::make_unique<BacktestCommand>();
}

}  // namespace pipeloom::cli
