// The interface of the commands of the `pipeloom` binary, and their list.
//
// One object serves one invocation: Flags() binds the options to its members,
// ParseFlags fills them in, Run does the work. Commands print through the
// Context, so that tests can read their output.
#ifndef PIPELOOM_CLI_CONSOLE_COMMAND_H_
#define PIPELOOM_CLI_CONSOLE_COMMAND_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/console/flags.h"

namespace pipeloom::cli {

struct Context {
  std::function<void(absl::string_view)> print{};  // Prints to stdout.
  std::function<void(absl::string_view)> warn{};   // Prints a line to stderr.
  // Rewrites the progress line; empty if there is no terminal.
  std::function<void(absl::string_view)> show_progress{};
  std::stop_token stop{};  // Requested by Ctrl-C.
  // As typed, quoted for a shell; empty in tests of single commands.
  std::string command_line{};
};

struct CommandText {
  std::string name{};       // "plan"
  std::string arguments{};  // "JOB --batch FILE [options]"
  std::string summary{};    // A single line.
  std::string details{};    // Paragraphs, separated by "\n\n".
};

class Command {
 public:
  virtual ~Command() = default;
  virtual CommandText text() const = 0;
  virtual std::vector<Flag> Flags() = 0;
  // Runs the command. `args` are the arguments that are not options. A
  // UsageError is the user's mistake; Cancelled follows a stop request.
  virtual absl::Status Run(const std::vector<std::string>& args,
                           const Context& context) = 0;
};

std::unique_ptr<Command> MakeBacktestCommand();
std::unique_ptr<Command> MakeBenchCommand();
std::unique_ptr<Command> MakeCalibrateCommand();
std::unique_ptr<Command> MakeCompareCommand();
std::unique_ptr<Command> MakeCostCommand();
std::unique_ptr<Command> MakeEmulateCommand();
std::unique_ptr<Command> MakeExplainCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeImportCommand();
std::unique_ptr<Command> MakeModelCommand();
std::unique_ptr<Command> MakePartitionCommand();
std::unique_ptr<Command> MakeLoadgenCommand();
std::unique_ptr<Command> MakePlanCommand();
std::unique_ptr<Command> MakeRunCommand();
std::unique_ptr<Command> MakeSearchCommand();
std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeTraceCommand();
std::unique_ptr<Command> MakeValidateCommand();
std::unique_ptr<Command> MakeWhatIfCommand();

// Returns all commands, in the order in which the help shows them.
std::vector<std::unique_ptr<Command>> AllCommands();

// Parses the arguments, runs the command and prints its error. Returns the exit
// code: 0 done, 1 failed, 2 misused, 130 interrupted.
int RunCommandLine(const std::vector<std::string>& args,
                   const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_COMMAND_H_
