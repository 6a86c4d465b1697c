// The bytes one rank holds, by item, against its limit, and the history of it.
// Nothing is allocated here. One object per rank, used by its thread only.
#ifndef PIPELOOM_RUNTIME_MEMORY_ACCOUNT_H_
#define PIPELOOM_RUNTIME_MEMORY_ACCOUNT_H_

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

class MemoryAccount {
 public:
  // Starts with the rank's static memory, entered at the step's start.
  MemoryAccount(RankId rank, const RankMemory& memory, const RankClock* clock);

  // ResourceExhausted: it would pass the limit; says what is held. Nothing is
  // taken then.
  absl::Status Take(MemoryItem item, Bytes bytes);
  // FailedPrecondition: more than is held of that item.
  absl::Status Release(MemoryItem item, Bytes bytes);

  Bytes held() const { return held_; }
  Bytes held(MemoryItem item) const {
    return items_[static_cast<size_t>(item)];
  }
  Bytes peak() const { return peak_; }
  const std::vector<MemoryStep>& history() const { return history_; }

 private:
  void Enter(MemoryItem item, Bytes delta, SimTime at);

  RankId rank_;
  Bytes limit_;
  const RankClock* clock_;
  Bytes held_{};
  Bytes peak_{};
  std::array<Bytes, kNumMemoryItems> items_{};
  std::vector<MemoryStep> history_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_MEMORY_ACCOUNT_H_
