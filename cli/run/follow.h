// `pipeloom-service follow`, which `pipeloom run --service` starts. It submits
// batches to a planner and fetches the plans of coming steps. It exchanges
// frames of cli/run/plan_follower.h with the run over its standard input, which
// is a socket.
#ifndef PIPELOOM_CLI_RUN_FOLLOW_H_
#define PIPELOOM_CLI_RUN_FOLLOW_H_

#include <string>

#include "absl/status/status.h"

namespace pipeloom::cli {

struct FollowSettings {
  std::string target{};
  std::string token{};
  std::string tls_roots{};  // PEM; empty: no TLS.
};

// Runs until the parent process has ended.
absl::Status RunFollow(const FollowSettings& settings);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_FOLLOW_H_
