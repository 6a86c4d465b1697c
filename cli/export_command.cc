// `pipeloom export`: a plan in the formats of other tools.
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/chrome_trace.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/job_input.h"
#include "cli/plan_file.h"
#include "emulator/emulate_step.h"
#include "ir/text_format.h"
#include "workloads/spec_loader.h"

namespace pipeloom::cli {
namespace {

class ExportCommand : public Command {
 public:
  CommandText text() const override {
    return {"export", "PLAN --to FORMAT [--out FILE]",
            "a plan in the format of another tool",
            "chrome: the emulated timeline as Chrome trace JSON, for "
            "Perfetto. graph-json: the step's tasks as a TaskGraph, the input "
            "of `pipeloom search`. text: the plan's text form. Without --out "
            "to stdout."};
  }

  std::vector<Flag> Flags() override {
    return {{"to",
             &format_,
             "FORMAT",
             "of the output",
             {"chrome", "graph-json", "text"}},
            {"out", &out_, "FILE", "write there"}};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string path,
                              OneArgument(args, "PLAN"));
    if (format_.empty()) return UsageError("--to FORMAT is missing");
    PIPELOOM_ASSIGN_OR_RETURN(const ExecutionPlan plan, ReadPlan(path));
    std::string text;
    if (format_ == "chrome") {
      PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                                emulator::EmulateStep(plan));
      text = ChromeTrace({{{&plan, &trace}}});
    } else if (format_ == "graph-json") {
      text = workloads::PrintTaskGraph(plan.graph);
    } else {
      text = ToString(plan);
    }
    if (out_.empty()) {
      context.print(text);
      return absl::OkStatus();
    }
    PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(out_, text));
    context.print(absl::StrCat("wrote ", out_, "\n"));
    return absl::OkStatus();
  }

 private:
  std::string format_{};
  std::string out_{};
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<ExportCommand>();
}

}  // namespace pipeloom::cli
