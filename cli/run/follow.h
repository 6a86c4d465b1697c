// `pipeloom-service follow`, which `pipeloom run --service` starts: keeps the
// plans of coming steps on their way. Frames of cli/run/plan_follower.h on its
// standard input, which is a socket.
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

// Until its parent has gone.
absl::Status RunFollow(const FollowSettings& settings);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_FOLLOW_H_
