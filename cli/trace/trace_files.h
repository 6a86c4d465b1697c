// Trace files by name: of a command's arguments.
#ifndef PIPELOOM_CLI_TRACE_TRACE_FILES_H_
#define PIPELOOM_CLI_TRACE_TRACE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/trace/trace_import.h"

namespace pipeloom::cli {

// Each is opened when it is first read. A folder stands for all files in it
// that end in .json, by name. NotFound names the path; InvalidArgument: a
// folder without traces.
absl::StatusOr<std::vector<TraceSource>> OpenTraces(
    const std::vector<std::string>& paths);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TRACE_TRACE_FILES_H_
