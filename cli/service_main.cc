// pipeloom-service: `serve` and `loadgen`.
#include <signal.h>

#include "cli/console/process.h"
#include "cli/run/run_service.h"

int main(int argc, char** argv) {
  // A reader that left is an error of the write instead.
  signal(SIGPIPE, SIG_IGN);
  return pipeloom::cli::RunProcess(argc, argv,
                                   pipeloom::cli::RunServiceCommand);
}
