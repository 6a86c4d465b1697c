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
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  context_.show_progress("");
}

void Progress::Set(int64_t done, absl::string_view detail) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  detail_ = std::string(detail);
}

void Progress::Loop(const std::stop_token& stop) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, stop, kFirst, [] { return false; });
  while (!stop.stop_requested()) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::steady_clock::now() - begin);
    context_.show_progress(
        absl::StrFormat("%s: %d of %d%s, %d s", doing_, done_, total_,
                        detail_.empty() ? "" : absl::StrCat(" (", detail_, ")"),
                        seconds.count()));
    wake_.wait_for(lock, stop, kPeriod, [] { return false; });
  }
}

}  // namespace pipeloom::cli
