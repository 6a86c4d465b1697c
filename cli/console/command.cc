#include "cli/console/command.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/console/outputs.h"

namespace pipeloom::cli {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kMisused = 2;
constexpr int kInterrupted = 130;

// The commands of one use, in the order in which the help shows them.
struct CommandGroup {
  const char* title;
  std::vector<std::unique_ptr<Command> (*)()> commands;
};

const std::vector<CommandGroup>& CommandGroups() {
  static const auto* const kGroups = new std::vector<CommandGroup>{
      {"Plan and run",
       {MakePlanCommand, MakeCompareCommand, MakePartitionCommand,
        MakeSearchCommand, MakeRunCommand}},
      {"Ask",
       {MakeExplainCommand, MakeWhatIfCommand, MakeEmulateCommand,
        MakeCostCommand}},
      {"Measure",
       {MakeTraceCommand, MakeCalibrateCommand, MakeBacktestCommand,
        MakeBenchCommand}},
      {"Serve", {MakeServeCommand, MakeLoadgenCommand}},
      {"Files",
       {MakeModelCommand, MakeValidateCommand, MakeExportCommand,
        MakeImportCommand}}};
  return *kGroups;
}

std::string Usage() {
  std::string text =
      "usage: pipeloom COMMAND [arguments]\n\n"
      "Plans, emulates and runs pipeline schedules of multimodal training, "
      "step by step.\n";
  for (const CommandGroup& group : CommandGroups()) {
    absl::StrAppend(&text, "\n", group.title, ":\n");
    for (const auto& make : group.commands) {
      const CommandText words = make()->text();
      absl::StrAppendFormat(&text, "  %-9s %s\n", words.name, words.summary);
    }
  }
  return absl::StrCat(
      text,
      "\n`pipeloom COMMAND --help` explains each. `pipeloom --version`.\n",
      "Exit codes: 0 done, 1 failed, 2 misused.\n");
}

std::string Help(Command& command) {
  const CommandText words = command.text();
  std::string text = absl::StrCat("usage: pipeloom ", words.name, " ",
                                  words.arguments, "\n\n");
  for (const absl::string_view paragraph :
       absl::StrSplit(words.details, "\n\n", absl::SkipEmpty())) {
    absl::StrAppend(&text, WrapText(paragraph, 0), "\n\n");
  }
  return absl::StrCat(text, "Options:\n", FlagsHelp(command.Flags()));
}

std::unique_ptr<Command> FindCommand(const std::string& name) {
  for (auto& command : AllCommands()) {
    if (command->text().name == name) return std::move(command);
  }
  return nullptr;
}

// Returns a command line quoted for a shell, such as
// "pipeloom plan dip-vlm-s --out 'my plan.pb'".
std::string ShellWords(const std::vector<std::string>& args) {
  std::string text = "pipeloom";
  for (const std::string& word : args) {
    const bool plain =
        !word.empty() && word.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789-_=+./:,%@") == std::string::npos;
    absl::StrAppend(&text, " ");
    if (plain) {
      absl::StrAppend(&text, word);
    } else {
      absl::StrAppend(&text, "'", absl::StrReplaceAll(word, {{"'", "'\\''"}}),
                      "'");
    }
  }
  return text;
}

int UnknownCommand(const std::string& name, const Context& context) {
  std::vector<std::string> names;
  for (const auto& command : AllCommands()) {
    names.push_back(command->text().name);
  }
  context.warn(absl::StrCat("pipeloom: there is no command \"", name, "\"",
                            DidYouMean(name, names),
                            "\n`pipeloom --help` lists them"));
  return kMisused;
}

}  // namespace

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  for (const CommandGroup& group : CommandGroups()) {
    for (const auto& make : group.commands) commands.push_back(make());
  }
  return commands;
}

int RunCommandLine(const std::vector<std::string>& args,
                   const Context& context) {
  if (args.empty()) {
    context.warn(Usage());
    return kMisused;
  }
  const std::string& name = args[0];
  if (name == "--version") {
    context.print(absl::StrCat("pipeloom ", PIPELOOM_VERSION, "\n"));
    return kDone;
  }
  const bool asks_help = name == "--help" || name == "-h" || name == "help";
  if (asks_help && args.size() == 1) {
    context.print(Usage());
    return kDone;
  }
  const std::string& wanted = asks_help ? args[1] : name;
  const std::unique_ptr<Command> command = FindCommand(wanted);
  if (command == nullptr) return UnknownCommand(wanted, context);
  for (const std::string& argument : args) {
    if (argument == "--") break;
    if (asks_help || argument == "--help" || argument == "-h") {
      context.print(Help(*command));
      return kDone;
    }
  }
  const std::vector<Flag> flags = command->Flags();
  const absl::StatusOr<std::vector<std::string>> positional =
      ParseFlags(flags, absl::MakeConstSpan(args).subspan(1));
  absl::Status status = positional.status();
  if (status.ok()) status = CheckOutputs(flags, *positional);
  Context mine = context;
  mine.command_line = ShellWords(args);
  if (WritesToStdout(flags)) {
    mine.print = [&context](absl::string_view text) {
      context.warn(absl::StripTrailingAsciiWhitespace(text));
    };
  }
  if (status.ok()) status = command->Run(*positional, mine);
  if (status.ok()) return kDone;
  if (context.show_progress) context.show_progress("");
  if (context.stop.stop_requested()) {
    context.warn("pipeloom: interrupted");
    return kInterrupted;
  }
  context.warn(absl::StrCat("pipeloom ", wanted, ": ", status.message()));
  if (!IsUsageError(status)) return kFailed;
  context.warn(
      absl::StrCat("`pipeloom ", wanted, " --help` lists the options"));
  return kMisused;
}

}  // namespace pipeloom::cli
