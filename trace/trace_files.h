// Trace files named by a command's arguments.
#ifndef PIPELOOM_TRACE_TRACE_FILES_H_
#define PIPELOOM_TRACE_TRACE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trace/trace_import.h"

namespace pipeloom::trace {

// Returns the sources for the paths; each file is opened when it is first read.
// A folder stands for all its files that end in .json, ordered by name.
// NotFound names the path. InvalidArgument: a folder has no traces, or one that
// is compressed only.
absl::StatusOr<std::vector<TraceSource>> OpenTraces(
    const std::vector<std::string>& paths);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_TRACE_FILES_H_
