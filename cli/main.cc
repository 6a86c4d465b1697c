// pipeloom: every command but what `serve` and `loadgen` start beside it.
#include "cli/console/command.h"
#include "cli/console/process.h"

int main(int argc, char** argv) {
  return pipeloom::cli::RunProcess(argc, argv, pipeloom::cli::RunCommandLine);
}
