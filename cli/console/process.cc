#include "cli/console/process.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <stop_token>
#include <thread>

namespace pipeloom::cli {
namespace {

// Requests a stop at SIGINT or SIGTERM. Starts a thread that waits for signals
// as long as the process lives.
void StopOnInterrupt(std::stop_source stop) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // All threads inherit the mask, so that only the waiting one gets signals.
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

int RunProcess(int argc, char** argv,
               const std::function<int(const std::vector<std::string>&,
                                       const Context&)>& command) {
  signal(SIGXFSZ, SIG_IGN);
  const std::stop_source stop;
  StopOnInterrupt(stop);

  Context context;
  context.stop = stop.get_token();
  context.print = [](absl::string_view text) { Write(stdout, text); };
  context.warn = [](absl::string_view text) {
    Write(stderr, text);
    if (text.empty() || text.back() != '\n') Write(stderr, "\n");
  };
  if (isatty(STDERR_FILENO) != 0) {
    context.show_progress = [](absl::string_view text) {
      Write(stderr, "\r\033[K");
      Write(stderr, text);
    };
  }
  const int code =
      command(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
              context);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::perror("pipeloom: cannot write to stdout");
    return code == 0 ? 1 : code;
  }
  return code;
}

}  // namespace pipeloom::cli
