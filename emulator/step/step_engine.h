// The event engine: runs a StepProgram with given times.
//
// A rank runs on by itself until it blocks or, where links serve in order of
// time, until its clock passes that of another rank that can go on; so sends
// and receives are reached in order of simulated time, and a transfer's begin
// is known once both ends have been reached. Where order does not matter
// (StepProgram::order_free) ranks run until they block: the same result with
// less to do.
//
// A run fills arrays that are kept between runs: no allocation after the
// first. One engine for each thread; programs may be shared.
#ifndef PIPELOOM_EMULATOR_STEP_STEP_ENGINE_H_
#define PIPELOOM_EMULATOR_STEP_STEP_ENGINE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "emulator/cost/resource.h"
#include "emulator/step/event_queue.h"
#include "emulator/step/step_program.h"

namespace pipeloom::emulator {

// One transfer in this run: a quarter of a cache line. What it takes and where
// it goes is its kind's; transfers that follow each other from one rank to
// another with equal times share one.
struct TransferState {
  int64_t start = 0;   // Once begun; before that, when one end was reached.
  uint32_t stamp = 0;  // Run and phase.
  uint32_t kind = 0;
};
struct TransferKind {
  int64_t occupancy = 0;
  int64_t lag = 0;
  int32_t from = -1;
  int32_t to = -1;
  int32_t link_out = kNoLink;
  int32_t link_in = kNoLink;
};

struct RankState {
  int64_t now = 0;
  int64_t copied = 0;  // The copy stream is free.
  uint32_t next = 0;   // Operation within the rank.
  int32_t waits_for = -1;
  uint32_t waits = 0;        // That took time, so far.
  int64_t epilogue_at = -1;  // Its epilogue began; -1: it has none.
};

struct CopyState {
  int64_t start = 0;
  int64_t end = 0;
};

class StepEngine {
 public:
  // REQUIRES: `program` outlives the engine; `times` is of it.
  StepEngine(const StepProgram& program, const StepTimes& times) {
    Load(program, times);
  }
  StepEngine() = default;  // To be loaded before anything else.
  // As if made anew, in the memory that is there.
  void Load(const StepProgram& program, const StepTimes& times);

  // Other durations for the next run; as many as the program has slots.
  std::vector<int64_t>& durations() { return durations_; }
  const std::vector<int64_t>& durations() const { return durations_; }
  std::vector<int64_t>& epilogues() { return epilogues_; }
  void SetTransfer(uint32_t transfer, StepTimes::Edge times) {
    if (!own_kinds_) GiveOwnKinds();
    TransferKind& kind = kinds_[transfers_[transfer].kind];
    kind.occupancy = times.occupancy;
    kind.lag = times.lag;
  }

  // From the start to the end. FailedPrecondition shows the waiting ranks of a
  // deadlock. `in_order`: stop ranks for each other's clocks though it makes
  // no difference.
  absl::Status Run(bool in_order = false);

  // Of the last run that ended well. Nanoseconds.
  int64_t finish() const { return finish_; }
  const std::vector<int64_t>& starts() const { return starts_; }  // By slot.
  const std::vector<RankState>& ranks() const { return ranks_; }
  bool has_begun(uint32_t transfer) const {
    return transfers_[transfer].stamp == run_ + kLeft;
  }
  // When it began, left its links, and arrived. REQUIRES: it has begun.
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
  // The same for whoever goes through all of them: arrays by transfer and by
  // kind. Good until the next run or load.
  struct TransferTimes {
    const TransferState* states = nullptr;
    const TransferKind* kinds = nullptr;
    const int64_t* all_left = nullptr;  // None: start and occupancy say it.
    uint32_t begun = 0;                 // The stamp of those that have begun.
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
  // When a guarded compute's input from its own rank is there.
  int64_t local_arrival(const Guard::Local& local) const {
    return starts_[local.slot] + durations_[local.slot] +
           local_lags_[local.index];
  }
  const StepProgram& program() const { return *program_; }

 private:
  friend class ReplayStep;  // Stops and goes on in between.

  // Phases of a transfer; the run's number is added.
  static constexpr uint32_t kOneEnd = 1;
  static constexpr uint32_t kFlowing = 2;  // Begun, its end not yet known.
  static constexpr uint32_t kLeft = 3;     // Begun, `left` is known.

  enum class Stop { kDone, kBlocked, kYield };

  void Reset();
  template <bool kOrdered, bool kFair, typename Watch>
  void Loop(Watch&& watch);
  template <bool kOrdered, bool kFair>
  Stop RunRank(int32_t id);
  // The transfer's end on a rank is reached at `at`. True if the other rank
  // waited for that and can go on.
  template <bool kFair>
  bool Reach(uint32_t transfer, int64_t at);
  template <bool kFair>
  int64_t Left(uint32_t transfer, const TransferState& state) const {
    if constexpr (kFair) return left_[transfer];
    return state.start + kinds_[state.kind].occupancy;
  }
  // True if it waited for the transfer.
  bool Wake(int32_t id, uint32_t transfer, int64_t at);
  void GoOn(RankState* rank, int32_t id, int64_t at);
  // The first time at which rank `id` has to let another go on before it
  // reaches an end of a transfer.
  template <bool kFair>
  int64_t Horizon(int32_t id) const;
  void GiveOwnKinds();
  void FinishFlows();
  absl::Status Conclude();
  absl::Status Deadlock() const;

  const StepProgram* program_ = nullptr;
  const StepOp* ops_ = nullptr;  // The program's, or a replay's own.
  std::vector<int64_t> durations_{};
  std::vector<int64_t> copy_times_{};
  std::vector<int64_t> epilogues_{};
  std::vector<int64_t> local_lags_{};  // By local edge.

  uint32_t run_ = 0;
  std::vector<TransferState> transfers_{};
  std::vector<TransferKind> kinds_{};
  bool own_kinds_ = false;           // One for each transfer.
  std::vector<int64_t> left_{};      // By transfer; only with fair links.
  std::vector<int64_t> received_{};  // By transfer: Recv was reached; or empty.
  std::vector<int64_t> starts_{};
  std::vector<CopyState> copies_{};
  std::vector<RankState> ranks_{};
  std::vector<int64_t> link_free_{};
  std::vector<int64_t> host_free_{};
  FairLinks fair_{};
  std::vector<uint32_t> flowed_{};
  EventQueue queue_{};
  std::vector<RankEvent> stack_{};  // Instead of the queue when order is free.
  bool in_order_ = false;
  int64_t ops_done_ = 0;
  int64_t finish_ = 0;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_STEP_ENGINE_H_
