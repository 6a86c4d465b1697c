// The program `pipeloom-service` with the commands `serve` and `loadgen`.
#include <signal.h>

#include "absl/synchronization/mutex.h"
#include "cli/console/process.h"
#include "cli/run/run_service.h"

int main(int argc, char** argv) {
  // Writing to a closed pipe returns an error instead of ending the process.
  signal(SIGPIPE, SIG_IGN);
  // gRPC's locks would be entered into one graph, behind one lock, to find
  // deadlocks: Debian's Abseil is built so.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return pipeloom::cli::RunProcess(argc, argv,
                                   pipeloom::cli::RunServiceCommand);
}
