#include "runtime/commit_point.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace pipeloom::runtime {

void CommitPoint::Arrive() {
  const std::lock_guard lock(mutex_);
  if (--missing_ == 0) changed_.notify_all();
}

absl::Status CommitPoint::Wait(WallTime deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline,
                      [&] { return missing_ == 0 || !aborted_.ok(); });
  // All of them step or none: once everyone is here, it is too late to abort.
  if (missing_ == 0) return absl::OkStatus();
  if (!aborted_.ok()) return aborted_;
  return absl::DeadlineExceededError(absl::StrFormat(
      "%d ranks have not come to their optimizer step in time", missing_));
}

bool CommitPoint::Abort(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  if (missing_ == 0) return false;
  if (aborted_.ok()) aborted_ = std::move(reason);
  changed_.notify_all();
  return true;
}

}  // namespace pipeloom::runtime
