// A command line run in this process, as programs see it.
#ifndef PIPELOOM_TESTS_CLI_RUN_COMMAND_H_
#define PIPELOOM_TESTS_CLI_RUN_COMMAND_H_

#include <cstdlib>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/console/command.h"

namespace pipeloom::cli {

struct Outcome {
  int code = 0;  // The exit code.
  std::string out{};
  std::string err{};
};

// `args`: without the program's name. `stop`: as Ctrl-C. Jobs are planned on
// the partition of their rule, as searches take long, unless PIPELOOM_PARTITION
// is set.
inline Outcome Pipeloom(const std::vector<std::string>& args,
                        std::stop_token stop = {}) {
  setenv("PIPELOOM_PARTITION", "rule", /*replace=*/0);
  Outcome outcome;
  Context context;
  context.stop = std::move(stop);
  context.print = [&](absl::string_view text) {
    absl::StrAppend(&outcome.out, text);
  };
  context.warn = [&](absl::string_view text) {
    absl::StrAppend(&outcome.err, text, "\n");
  };
  outcome.code = RunCommandLine(args, context);
  return outcome;
}

}  // namespace pipeloom::cli

#endif  // PIPELOOM_TESTS_CLI_RUN_COMMAND_H_
