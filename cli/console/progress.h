// The progress line on stderr. It is shown only on a terminal and when the work
// has taken longer than a moment, and removed when the work is done.
#ifndef PIPELOOM_CLI_CONSOLE_PROGRESS_H_
#define PIPELOOM_CLI_CONSOLE_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
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
  void Loop();

  const Context& context_;
  const std::string doing_;
  const int64_t total_;
  Mutex mutex_{};
  CondVar changed_{};
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string detail_ ABSL_GUARDED_BY(mutex_){};
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // The work is done.
  std::thread thread_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_PROGRESS_H_
