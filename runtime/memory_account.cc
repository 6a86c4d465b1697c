#include "runtime/memory_account.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pipeloom::runtime {

MemoryAccount::MemoryAccount(RankId rank, const RankMemory& memory,
                             const RankClock* clock)
    : rank_(rank), limit_(memory.limit), clock_(clock) {
  Enter(MemoryItem::kWeights, memory.weights, kStepStart);
  Enter(MemoryItem::kGradients, memory.gradients, kStepStart);
  Enter(MemoryItem::kOptimizer, memory.optimizer, kStepStart);
  Enter(MemoryItem::kOverhead, memory.overhead, kStepStart);
}

absl::Status MemoryAccount::Take(MemoryItem item, Bytes bytes) {
  if (limit_ > Bytes(0) && bytes > limit_ - held_) {
    std::string held;
    for (int i = 0; i < kNumMemoryItems; ++i) {
      absl::StrAppendFormat(&held, "%s%s %d", i == 0 ? "" : ", ",
                            MemoryItemName(static_cast<MemoryItem>(i)),
                            items_[static_cast<size_t>(i)].count());
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d B more of %s pass the limit of %d B; held: %s", bytes.count(),
        MemoryItemName(item), limit_.count(), held));
  }
  Enter(item, bytes, clock_->Now());
  return absl::OkStatus();
}

absl::Status MemoryAccount::Release(MemoryItem item, Bytes bytes) {
  if (bytes > held(item)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d B of %s are to be given back; %d B are held", bytes.count(),
        MemoryItemName(item), held(item).count()));
  }
  Enter(item, -bytes, clock_->Now());
  return absl::OkStatus();
}

void MemoryAccount::Enter(MemoryItem item, Bytes delta, SimTime at) {
  if (delta == Bytes(0)) return;
  held_ += delta;
  items_[static_cast<size_t>(item)] += delta;
  peak_ = std::max(peak_, held_);
  history_.push_back({.rank = rank_, .at = at, .item = item, .delta = delta});
}

}  // namespace pipeloom::runtime
