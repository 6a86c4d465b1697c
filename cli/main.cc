// pipeloom: every command but what `serve` and `loadgen` start beside it.
#include "cli/command.h"
#include "cli/process.h"

int main(int argc, char** argv) {
  return pipeloom::cli::RunProcess(argc, argv, pipeloom::cli::RunCommandLine);
}
