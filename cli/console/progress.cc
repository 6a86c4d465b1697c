#include "cli/console/progress.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::cli {
namespace {

constexpr auto kFirst = std::chrono::milliseconds(400);
constexpr auto kPeriod = std::chrono::milliseconds(200);

}  // namespace

Progress::Progress(const Context& context, absl::string_view doing,
                   int64_t total)
    : context_(context), doing_(doing), total_(total) {
  if (!context_.show_progress) return;
  thread_ = std::thread([this] { Loop(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    over_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  context_.show_progress("");
}

void Progress::Set(int64_t done, absl::string_view detail) {
  const MutexLock lock(&mutex_);
  done_ = done;
  detail_ = std::string(detail);
}

void Progress::Loop() {
  const auto begin = std::chrono::steady_clock::now();
  const MutexLock lock(&mutex_);
  const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_;
  };
  for (auto pause = kFirst; !changed_.WaitFor(&mutex_, pause, is_over);
       pause = kPeriod) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::steady_clock::now() - begin);
    context_.show_progress(
        absl::StrFormat("%s: %d of %d%s, %d s", doing_, done_, total_,
                        detail_.empty() ? "" : absl::StrCat(" (", detail_, ")"),
                        seconds.count()));
  }
}

}  // namespace pipeloom::cli
