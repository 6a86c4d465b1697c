// One plan emulated repeatedly with one small change at a time, as in a search:
// everything before the change is taken from the first emulation, and so is
// everything after it once the change has only shifted all times by the same
// amount, or by nothing.
//
// The first emulation keeps checkpoints: the engine's whole state at moments of
// simulated time. The replay of a change begins at the last checkpoint before
// the changed instructions. From then on the engine's state is compared with
// each later checkpoint; when the two are equal except for a shift of all
// clocks, the rest is known. Times are integers, so results are bit-identical
// to those of a whole emulation.
//
// Plans with copies to the host, delays inside a rank or kFairNic links are
// emulated whole each time. Memory: the checkpoints, at most kMaxCheckpoints
// times (ranks + links + transfers in flight). Use one object per thread.
#ifndef PIPELOOM_EMULATOR_STEP_REPLAY_STEP_H_
#define PIPELOOM_EMULATOR_STEP_REPLAY_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "emulator/step/emulate_step.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::emulator {

// A rank's memory peak, as in MemoryPeaks() of a StepTrace but without the
// items.
struct RankPeak {
  Bytes total{};
  SimTime at{};
  bool operator==(const RankPeak&) const = default;
};

// Finish and memory peaks of an emulated step.
struct StepOutcome {
  SimTime finish{};
  IdVector<RankId, RankPeak> peaks{};
  bool operator==(const StepOutcome&) const = default;
};

// Counts over all changes so far. Operations are instructions.
struct ReplayCounters {
  int64_t changes = 0;
  int64_t whole = 0;        // Emulated from start to end.
  int64_t rejoined = 0;     // Ended early, as only a shift was left.
  int64_t operations = 0;   // Emulated.
  int64_t prefix_hits = 0;  // Operations before the change, not emulated.
  int64_t suffix_hits = 0;  // Operations after rejoining, not emulated.
  double hit_ratio() const {
    const int64_t all = operations + prefix_hits + suffix_hits;
    return all == 0 ? 0
                    : static_cast<double>(prefix_hits + suffix_hits) /
                          static_cast<double>(all);
  }
};

// The emulation of a plan and of its changes.
class ReplayStep {
 public:
  static constexpr int32_t kMaxCheckpoints = 256;

  // Emulates the plan once. Returns the errors of EmulateStep. With `reuse` off
  // every change is emulated whole; results are the same.
  static absl::StatusOr<std::unique_ptr<ReplayStep>> Create(
      const ExecutionPlan& plan, const EmulateOptions& options = {},
      bool reuse = true);

  // Returns the outcome of the plan without a change.
  const StepOutcome& base() const { return base_; }

  // Returns the outcome with another duration of one task (slow_ranks are not
  // applied to it). InvalidArgument: there is no such task, it is computed
  // never or more than once, or the duration is negative.
  absl::StatusOr<StepOutcome> WithDuration(TaskId task, Duration duration);

  // Returns the outcome with `instructions` in place of as many of the rank's
  // from `first` on. They must be the same instructions in another order, else
  // InvalidArgument. FailedPrecondition: the plan then deadlocks.
  absl::StatusOr<StepOutcome> WithOrder(
      RankId rank, int32_t first, absl::Span<const Instruction> instructions);

  // Make the same changes, and the changed plan replaces the plan.
  absl::Status KeepDuration(TaskId task, Duration duration);
  absl::Status KeepOrder(RankId rank, int32_t first,
                         absl::Span<const Instruction> instructions);

  const ReplayCounters& counters() const { return counters_; }

 private:
  // A transfer in flight.
  struct Live {
    uint32_t transfer = 0;
    uint32_t phase = 0;
    int64_t start = 0;
  };
  struct Checkpoint {
    int64_t ops_done = 0;
    RankEvent event{};  // The turn that comes next.
    std::vector<RankState> ranks{};
    std::vector<int64_t> links{};
    std::vector<Live> live{};
  };
  // The operations [begin, end) of a rank that may differ from the base.
  struct Range {
    int32_t rank = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  // The place of a rank's highest memory: the first such operation; op is -1 if
  // it is at the start of the step.
  struct PeakSite {
    int64_t total = 0;
    int32_t op = -1;
  };
  struct RankMemory {
    int64_t held = 0;                    // Throughout the step.
    std::vector<int64_t> before{};       // Held before each operation.
    std::vector<int32_t> first_best{};   // Peak's site in [0, k).
    std::vector<int32_t> second_best{};  // Peak's site in [k, end).
  };

  ReplayStep(StepProgram program, const ExecutionPlan& plan,
             const EmulateOptions& options, bool reuse);

  absl::Status RunBase();
  // Emulates the program with the change made. `sites` are those of the changed
  // program.
  absl::StatusOr<StepOutcome> Replay(const Range& changed,
                                     const std::vector<PeakSite>& sites);
  absl::StatusOr<StepOutcome> Whole(const std::vector<PeakSite>& sites);
  void Restore(const Checkpoint& checkpoint);
  bool Rejoins(const Checkpoint& checkpoint, const RankEvent& event) const;
  void Save(const RankEvent& event);

  absl::StatusOr<uint32_t> SlotOf(TaskId task, Duration duration) const;
  // Returns the slice's operations in the order of `instructions`.
  absl::StatusOr<std::vector<StepOp>> Reordered(
      RankId rank, int32_t first,
      absl::Span<const Instruction> instructions) const;
  // Handles plans whose copies or guards depend on the order.
  absl::StatusOr<StepOutcome> OfChangedPlan(
      RankId rank, int32_t first,
      absl::Span<const Instruction> instructions) const;

  void IndexMemory(int32_t rank);
  // Returns the memory that the operation takes while it runs.
  int64_t Taken(const StepOp& op) const;
  // Returns the change of memory by the whole operation.
  int64_t Changed(const StepOp& op) const;
  PeakSite SiteWith(const Range& changed) const;
  SimTime TimeOf(int32_t rank, int32_t op) const;
  StepOp* OpsOf(int32_t rank) {
    return program_.ops.data() + program_.op_begin[static_cast<size_t>(rank)];
  }

  static constexpr int64_t kNoSlot = -1;
  static constexpr int64_t kSeveral = -2;

  StepProgram program_;
  ExecutionPlan plan_{};
  EmulateOptions options_{};
  std::vector<int64_t> slot_of_task_{};  // Slot, kNoSlot or kSeveral.
  // Index of the operation within its rank.
  std::vector<uint32_t> place_of_slot_{};
  const bool simple_;  // Neither copies nor guards.
  const bool reuse_;
  bool lags_ = true;  // No transfer arrives before it has left.
  StepEngine engine_;

  StepOutcome base_{};
  std::vector<RankState> base_ranks_{};
  std::vector<Checkpoint> checkpoints_{};
  std::vector<RankMemory> memory_{};
  std::vector<PeakSite> sites_{};
  // Used while the base runs.
  int64_t next_save_ = 0;
  int64_t save_every_ = 1;
  // Last operation of each transfer on the sender's and on the receiver's rank.
  std::vector<int32_t> last_out_{};
  std::vector<int32_t> last_in_{};
  std::vector<uint32_t> live_{};     // Candidates so far.
  std::vector<uint32_t> scanned_{};  // Operations examined. Indexed by rank.
  ReplayCounters counters_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_REPLAY_STEP_H_
