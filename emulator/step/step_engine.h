// The event engine: runs a StepProgram with given times.
//
// A rank runs on until it blocks or, if links serve in order of time, until its
// clock passes that of another rank that can go on; so sends and receives are
// reached in order of simulated time, and the begin of a transfer is known once
// both ends have been reached. If order does not matter
// (StepProgram::order_free), ranks run until they block: the same result with
// less work.
//
// A run fills arrays that are kept between runs: nothing is allocated after the
// first. Use one engine per thread; programs may be shared.
#ifndef PIPELOOM_EMULATOR_STEP_STEP_ENGINE_H_
#define PIPELOOM_EMULATOR_STEP_STEP_ENGINE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "emulator/cost/resource.h"
#include "emulator/step/event_queue.h"
#include "emulator/step/step_program.h"

namespace pipeloom::emulator {

// One transfer in this run: a quarter of a cache line. Its times and route are
// in its kind; consecutive transfers from one rank to another with equal times
// share one kind.
struct TransferState {
  int64_t start = 0;   // Once begun; before that, when one end was reached.
  uint32_t stamp = 0;  // Number of the run plus phase.
  uint32_t kind = 0;
};
// Times and route that transfers share.
struct TransferKind {
  int64_t occupancy = 0;
  int64_t lag = 0;
  int32_t from = -1;
  int32_t to = -1;
  int32_t link_out = kNoLink;
  int32_t link_in = kNoLink;
  int64_t ahead = 0;  // SlowLink::ahead.
};

// The state of a rank in a run. Times in nanoseconds.
struct RankState {
  int64_t now = 0;
  int64_t copied = 0;  // When the copy stream is free.
  uint32_t next = 0;   // Index of the operation within the rank.
  int32_t waits_for = -1;
  uint32_t waits = 0;        // Number of waits so far that took time.
  int64_t epilogue_at = -1;  // When its epilogue began; -1: it has none.
};

// Start and end of a copy to or from the host.
struct CopyState {
  int64_t start = 0;
  int64_t end = 0;
};

// The event engine.
class StepEngine {
 public:
  // REQUIRES: `program` outlives the engine; `times` is of it.
  StepEngine(const StepProgram& program, const StepTimes& times) {
    Load(program, times);
  }
  StepEngine() = default;  // REQUIRES: Load() is called before anything else.
  // Resets the engine to this program and these times, reusing its memory.
  // REQUIRES: as for the constructor.
  void Load(const StepProgram& program, const StepTimes& times);

  // Durations and epilogues may be changed for the next run. The numbers of
  // them are those of the program's slots and ranks.
  std::vector<int64_t>& durations() { return durations_; }
  const std::vector<int64_t>& durations() const { return durations_; }
  std::vector<int64_t>& epilogues() { return epilogues_; }
  void SetTransfer(uint32_t transfer, StepTimes::Edge times) {
    if (!own_kinds_) GiveOwnKinds();
    TransferKind& kind = kinds_[transfers_[transfer].kind];
    kind.occupancy = times.occupancy;
    kind.lag = times.lag;
    kind.ahead = times.ahead;
  }

  // Runs the program from start to end. FailedPrecondition shows the waiting
  // ranks of a deadlock. `in_order`: stop ranks for each other's clocks even if
  // that makes no difference.
  absl::Status Run(bool in_order = false);

  // Results of the last run that succeeded. Nanoseconds.
  int64_t finish() const { return finish_; }
  // Indexed by slot.
  const std::vector<int64_t>& starts() const { return starts_; }
  const std::vector<RankState>& ranks() const { return ranks_; }
  bool has_begun(uint32_t transfer) const {
    return transfers_[transfer].stamp == run_ + kLeft;
  }
  // Return when a transfer began, left its links, and arrived. REQUIRES: it has
  // begun.
  int64_t start(uint32_t transfer) const { return transfers_[transfer].start; }
  int64_t left(uint32_t transfer) const {
    const TransferState& t = transfers_[transfer];
    return left_.empty() ? t.start + kinds_[t.kind].occupancy : left_[transfer];
  }
  int64_t arrived(uint32_t transfer) const {
    return left(transfer) + kind(transfer).lag;
  }
  const TransferKind& kind(uint32_t transfer) const {
    return kinds_[transfers_[transfer].kind];
  }
  // The same for callers that go through all transfers: arrays indexed by
  // transfer and by kind. Valid until the next run or load.
  struct TransferTimes {
    const TransferState* states = nullptr;
    const TransferKind* kinds = nullptr;
    // Null: computed from start and occupancy.
    const int64_t* all_left = nullptr;
    uint32_t begun = 0;  // Stamp of transfers that have begun.
    int64_t left(uint32_t transfer) const {
      if (all_left != nullptr) return all_left[transfer];
      const TransferState& t = states[transfer];
      return t.start + kinds[t.kind].occupancy;
    }
    int64_t arrived(uint32_t transfer) const {
      return left(transfer) + kinds[states[transfer].kind].lag;
    }
  };
  TransferTimes transfer_times() const {
    return {.states = transfers_.data(),
            .kinds = kinds_.data(),
            .all_left = left_.empty() ? nullptr : left_.data(),
            .begun = run_ + kLeft};
  }
  const std::vector<CopyState>& copies() const { return copies_; }
  int64_t epilogue(int32_t rank) const {
    return epilogues_[static_cast<size_t>(rank)];
  }
  // Returns when the input of a guarded compute from its own rank arrives.
  int64_t local_arrival(const Guard::Local& local) const {
    return starts_[local.slot] + durations_[local.slot] +
           local_lags_[local.index];
  }
  const StepProgram& program() const { return *program_; }

 private:
  // Phases of a transfer; the number of the run is added.
  static constexpr uint32_t kOneEnd = 1;
  static constexpr uint32_t kFlowing = 2;  // Begun; its end is not known yet.
  static constexpr uint32_t kLeft = 3;     // Begun; `left` is known.

  enum class Stop { kDone, kBlocked, kYield };

  void Reset();
  template <bool kOrdered, bool kFair>
  void Loop();
  template <bool kOrdered, bool kFair>
  Stop RunRank(int32_t id);
  // Returns when a transfer whose send is reached at `at` may begin, and keeps
  // its link until then.
  int64_t Sent(uint32_t transfer, int64_t at);
  // Marks an end of the transfer as reached at `at`: the sender's, or with
  // kAtSender off the receiver's. Returns true if the other rank waited for
  // that and can go on.
  template <bool kOrdered, bool kFair, bool kAtSender>
  bool Reach(uint32_t transfer, int64_t at);
  template <bool kFair>
  int64_t Left(uint32_t transfer, const TransferState& state) const {
    if constexpr (kFair) return left_[transfer];
    return state.start + kinds_[state.kind].occupancy;
  }
  // Returns true if the rank waited for the transfer.
  template <bool kOrdered>
  bool Wake(int32_t id, uint32_t transfer, int64_t at);
  template <bool kOrdered>
  void GoOn(RankState* rank, int32_t id, int64_t at);
  // Returns the first time at which rank `id` has to let another go on before
  // it reaches an end of a transfer.
  template <bool kFair>
  int64_t Horizon(int32_t id) const;
  void GiveOwnKinds();
  void FinishFlows();
  absl::Status Conclude();
  absl::Status Deadlock() const;

  const StepProgram* program_ = nullptr;
  std::vector<int64_t> durations_{};
  std::vector<int64_t> copy_times_{};
  std::vector<int64_t> epilogues_{};
  std::vector<int64_t> local_lags_{};  // Indexed by local edge.

  uint32_t run_ = 0;
  std::vector<TransferState> transfers_{};
  std::vector<TransferKind> kinds_{};
  bool own_kinds_ = false;       // Whether each transfer has a kind of its own.
  bool delays_sends_ = false;    // Whether a kind has `ahead`.
  std::vector<int64_t> left_{};  // Indexed by transfer; only with fair links.
  // When Recv was reached, indexed by transfer; or empty.
  std::vector<int64_t> received_{};
  std::vector<int64_t> starts_{};
  std::vector<CopyState> copies_{};
  std::vector<RankState> ranks_{};
  std::vector<int64_t> link_free_{};
  std::vector<int64_t> host_free_{};
  FairLinks fair_{};
  std::vector<uint32_t> flowed_{};
  EventQueue queue_{};
  std::vector<RankEvent> stack_{};  // In place of the queue when order is free.
  int64_t ops_done_ = 0;
  int64_t finish_ = 0;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_STEP_ENGINE_H_
