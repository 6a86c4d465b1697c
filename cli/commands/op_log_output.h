// `pipeloom trace` of an operation log (trace/oplog/op_log.h).
#ifndef PIPELOOM_CLI_COMMANDS_OP_LOG_OUTPUT_H_
#define PIPELOOM_CLI_COMMANDS_OP_LOG_OUTPUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "studies/job/job_input.h"

namespace pipeloom::cli {

struct OpLogRequest {
  std::string path{};
  int64_t iteration = -1;  // Whose order is searched; -1: the last.
  studies::SearchOptions search{};
  bool json = false;
};

// Reads the log, replays its steps and prints what slows them down; with a
// budget also searches a better order of each replica's pipeline.
absl::Status PrintOpLog(const OpLogRequest& request, const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_COMMANDS_OP_LOG_OUTPUT_H_
