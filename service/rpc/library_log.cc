#include "service/rpc/library_log.h"

#include <grpc/support/log.h>

#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace pipeloom::service {
namespace {

constexpr int kMostPerSecond = 10;
constexpr size_t kMaxLine = 1000;

// The library's log function is global and has no argument of its own.
constinit Mutex mutex{};
Log* current ABSL_GUARDED_BY(mutex) = nullptr;
int64_t second ABSL_GUARDED_BY(mutex) = 0;
int written ABSL_GUARDED_BY(mutex) = 0;
int64_t left_out ABSL_GUARDED_BY(mutex) = 0;

void Write(gpr_log_func_args* args) {
  if (args->severity < GPR_LOG_SEVERITY_ERROR) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
  const MutexLock lock(&mutex);
  if (current == nullptr) return;
  if (now != second) {
    second = now;
    written = 0;
  }
  if (++written > kMostPerSecond) {
    ++left_out;
    return;
  }
  current->Write(
      LogLevel::kWarning, "grpc",
      {{"message", absl::string_view(args->message).substr(0, kMaxLine)},
       {"left_out_before", left_out}});
  left_out = 0;
}

}  // namespace

LibraryLog::LibraryLog(Log* log) : log_(log) {
  {
    const MutexLock lock(&mutex);
    current = log;
  }
  gpr_log_verbosity_init();
  gpr_set_log_function(Write);
}

LibraryLog::~LibraryLog() {
  const MutexLock lock(&mutex);
  if (current == log_) current = nullptr;
}

}  // namespace pipeloom::service
