// The process around the commands: arguments, streams, terminal, signals.
#ifndef PIPELOOM_CLI_CONSOLE_PROCESS_H_
#define PIPELOOM_CLI_CONSOLE_PROCESS_H_

#include <functional>
#include <string>
#include <vector>

#include "cli/console/command.h"

namespace pipeloom::cli {

// Calls `command` with the arguments after the program's name and a context
// that writes to this process's streams; returns its exit code, or 1 if stdout
// could not be written. SIGINT and SIGTERM become a stop request, a second one
// ends the process at once; a file beyond its limit is an error of the write.
// REQUIRES: called once, by main, before there are other threads.
int RunProcess(int argc, char** argv,
               const std::function<int(const std::vector<std::string>&,
                                       const Context&)>& command);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_PROCESS_H_
