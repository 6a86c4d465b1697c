// The work of `pipeloom serve` and `pipeloom loadgen`.
#ifndef PIPELOOM_CLI_RUN_RUN_SERVICE_H_
#define PIPELOOM_CLI_RUN_RUN_SERVICE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "cli/run/service_flags.h"

namespace pipeloom::cli {

// Serves until `context.stop` is requested. When it has started, prints the
// line "listening on ADDRESS:PORT" and, if there is a metrics server, the line
// "metrics on 127.0.0.1:PORT".
absl::Status RunServe(const ServeSettings& settings, const Context& context);

// Runs a load test. Fails if a plan was wrong or lost.
absl::Status RunLoadgen(const LoadSettings& settings, const Context& context);

// Runs `serve` or `loadgen` with its options. Returns the exit code: 0 done,
// 1 failed, 2 misused.
int RunServiceCommand(const std::vector<std::string>& args,
                      const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_SERVICE_H_
