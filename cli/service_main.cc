// pipeloom-service: the process around `serve` and `loadgen`.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "cli/run_service.h"

namespace {

// Turns SIGINT and SIGTERM into a stop request; a second one ends the process
// at once.
void StopOnInterrupt(std::stop_source stop) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // Inherited by all threads, so that only the waiting one gets them.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, stop]() mutable {
    int signal_number = 0;
    sigwait(&signals, &signal_number);
    stop.request_stop();
    sigwait(&signals, &signal_number);
    _exit(130);
  }).detach();
}

void Write(std::FILE* file, absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

int main(int argc, char** argv) {
  // A full disk and a reader that left are errors of the write instead.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  const std::stop_source stop;
  StopOnInterrupt(stop);
  pipeloom::cli::Context context;
  context.stop = stop.get_token();
  context.print = [](absl::string_view text) { Write(stdout, text); };
  context.warn = [](absl::string_view text) {
    Write(stderr, text);
    if (text.empty() || text.back() != '\n') Write(stderr, "\n");
  };
  return pipeloom::cli::RunServiceCommand(
      std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
      context);
}
