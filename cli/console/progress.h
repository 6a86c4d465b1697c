// The progress line on stderr. It is shown only on a terminal and when the work
// has taken longer than a moment, and removed when the work is done.
#ifndef PIPELOOM_CLI_CONSOLE_PROGRESS_H_
#define PIPELOOM_CLI_CONSOLE_PROGRESS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "cli/console/command.h"

namespace pipeloom::cli {

// A line such as "planning: 3 of 10 (megatron), 12 s". A thread of its own
// renews it, so that a long search is seen to run.
class Progress {
 public:
  Progress(const Context& context, absl::string_view doing, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Sets the number of items done, and the text in brackets.
  void Set(int64_t done, absl::string_view detail = "");

 private:
  void Loop(const std::stop_token& stop);

  const Context& context_;
  const std::string doing_;
  const int64_t total_;
  std::mutex mutex_{};  // Guards done_ and detail_.
  int64_t done_ = 0;
  std::string detail_{};
  std::condition_variable_any wake_{};
  std::jthread thread_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_PROGRESS_H_
