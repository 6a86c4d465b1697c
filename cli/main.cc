// The program `pipeloom` with all its commands, of which `serve` and `loadgen`
// start pipeloom-service.
#include "cli/console/command.h"
#include "cli/console/process.h"

int main(int argc, char** argv) {
  return pipeloom::cli::RunProcess(argc, argv, pipeloom::cli::RunCommandLine);
}
