// A count of the bytes that one rank holds, by item, with its history and a
// check against the rank's limit. It allocates none of this memory itself.
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

// The account of one rank, used by its thread only.
class MemoryAccount {
 public:
  // Starts with the rank's static memory, entered at the step's start.
  // REQUIRES: `clock` outlives the account.
  MemoryAccount(RankId rank, const RankMemory& memory, const RankClock* clock);

  // Adds bytes to an item. ResourceExhausted: the limit would be passed; the
  // message says what is held, and the account stays unchanged.
  absl::Status Take(MemoryItem item, Bytes bytes);
  // Subtracts bytes from an item. FailedPrecondition: fewer are held of it.
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
