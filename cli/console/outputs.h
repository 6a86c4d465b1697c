// The check of a command's outputs before its work.
#ifndef PIPELOOM_CLI_CONSOLE_OUTPUTS_H_
#define PIPELOOM_CLI_CONSOLE_OUTPUTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cli/console/flags.h"

namespace pipeloom::cli {

// Returns whether an option writes to the standard output ("-"), so that what
// the command prints must go elsewhere.
bool WritesToStdout(absl::Span<const Flag> flags);

// Checks that every file and folder that the options name as an output can be
// written, that no two options name the same file, and that none is a file that
// the command reads: one of `args`, or the value of another option. Creates a
// temporary file in each folder and removes it; writes nothing else. A
// UsageError names the option, the path and the reason. Does nothing in the
// ranks of an MPI run other than the first, since they write nothing.
absl::Status CheckOutputs(absl::Span<const Flag> flags,
                          absl::Span<const std::string> args);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_OUTPUTS_H_
