#include "runtime/commit_point.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace pipeloom::runtime {

void CommitPoint::Arrive() {
  const MutexLock lock(&mutex_);
  if (--missing_ == 0) changed_.NotifyAll();
}

absl::Status CommitPoint::Wait(WallTime deadline) {
  const MutexLock lock(&mutex_);
  const auto is_settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return missing_ == 0 || !aborted_.ok();
  };
  const bool settled = changed_.WaitUntil(&mutex_, deadline, is_settled);
  // All of them step or none: once everyone is here, it is too late to abort.
  if (missing_ == 0) return absl::OkStatus();
  if (settled) return aborted_;
  return absl::DeadlineExceededError(absl::StrFormat(
      "%d ranks have not come to their optimizer step in time", missing_));
}

bool CommitPoint::Abort(absl::Status reason) {
  const MutexLock lock(&mutex_);
  if (missing_ == 0) return false;
  if (aborted_.ok()) aborted_ = std::move(reason);
  changed_.NotifyAll();
  return true;
}

}  // namespace pipeloom::runtime
