// Trace files named by a command's arguments.
#ifndef PIPELOOM_CLI_TRACE_TRACE_FILES_H_
#define PIPELOOM_CLI_TRACE_TRACE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/trace/trace_import.h"

namespace pipeloom::cli {

// Returns the sources for the paths; each file is opened when it is first read.
// A folder stands for all its files that end in .json, ordered by name.
// NotFound names the path. InvalidArgument: a folder has no traces.
absl::StatusOr<std::vector<TraceSource>> OpenTraces(
    const std::vector<std::string>& paths);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TRACE_TRACE_FILES_H_
