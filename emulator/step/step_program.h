// An ExecutionPlan compiled for emulation: flat arrays, one 4-byte operation
// an instruction, and what an instruction needs found beforehand. Compiled
// once for any number of runs, with other durations if need be.
//
// Tasks and transfers are numbered anew in the order in which the programs
// name them, so that a rank goes through all arrays from front to back.
//
// The structure (operations, links, who waits for whom) is apart from the
// times (StepTimes): it does not depend on what anything costs.
//
// Plain data: safe from any number of threads once made.
#ifndef PIPELOOM_EMULATOR_STEP_STEP_PROGRAM_H_
#define PIPELOOM_EMULATOR_STEP_STEP_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "emulator/step/emulate_options.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::emulator {

enum class OpCode : uint8_t {
  kCompute,         // index: slot
  kComputeGuarded,  // index: into `guards`; waits inside its rank first
  kSend,            // index: transfer, as for the next five
  kBlockingSend,
  kRecv,
  kWaitRecv,
  kWaitSend,
  kFree,
  kOffload,  // index: into `copies`
  kFetch,
  kEpilogue,
  kNothing,
};

struct StepOp {
  static constexpr uint32_t kMaxIndex = (uint32_t{1} << 28) - 1;

  StepOp() = default;
  StepOp(uint32_t at, OpCode what) : index(at & kMaxIndex), code(what) {}

  uint32_t index : 28 = 0;
  OpCode code : 4 = OpCode::kNothing;
};
static_assert(sizeof(StepOp) == 4);

// From one rank to another. Links are FIFO resources by index; kNoLink: none.
inline constexpr int32_t kNoLink = -1;
struct EdgeRoute {
  int32_t from = -1;  // Ranks.
  int32_t to = -1;
  int32_t link_out = kNoLink;
  int32_t link_in = kNoLink;
};

// A copy between a GPU and its host.
struct HostCopy {
  TaskId task{};
  EdgeId edge{};  // What its span is shown as: the task's first way out.
  Bytes payload{};
};

// A compute that has to wait for copies of its rank, or for a delay inside it.
struct Guard {
  struct Local {
    uint32_t slot = 0;   // Of the producer.
    uint32_t index = 0;  // Into `local_edges`.
    EdgeId edge{};
  };
  uint32_t slot = 0;
  std::vector<uint32_t> fetches{};  // Into `copies`, executed before.
  std::vector<Local> locals{};
};

// Nanoseconds; sizes are those of the program's arrays.
struct StepTimes {
  std::vector<int64_t> durations{};  // By slot.
  struct Edge {
    int64_t occupancy = 0;
    int64_t lag = 0;  // From the link's release to arrival.
  };
  std::vector<Edge> transfers{};
  std::vector<int64_t> local_lags{};  // By local edge.
  std::vector<int64_t> copies{};
  std::vector<int64_t> epilogues{};  // By rank.
};

struct StepProgram {
  int32_t num_ranks = 0;
  std::vector<StepOp> ops{};         // By rank, in order.
  std::vector<uint32_t> op_begin{};  // By rank, and the end.
  // Computes numbered along the ranks' programs: slot -> task.
  std::vector<TaskId> task_of_slot{};
  // What a slot's task takes at its start and gives back at its end; `sent` it
  // takes at its start for other ranks, until the sends are waited for.
  struct SlotMemory {
    Bytes alloc{};
    Bytes free{};
    Bytes sent{};
  };
  std::vector<SlotMemory> memory_of_slot{};
  // The edges that instructions send or receive.
  struct Transfer {
    EdgeId edge{};
    uint32_t route = 0;
    bool operator==(const Transfer&) const = default;
  };
  std::vector<Transfer> transfers{};
  std::vector<Bytes> payloads{};  // By transfer.
  std::vector<EdgeRoute> routes{};
  const EdgeRoute& route_of(uint32_t transfer) const {
    return routes[transfers[transfer].route];
  }
  int32_t num_links = 0;
  std::vector<HostCopy> copies{};
  std::vector<int32_t> host_link{};  // By rank; empty: each its own.
  std::vector<Guard> guards{};
  std::vector<EdgeId> local_edges{};  // With a delay, that guards wait for.
  // Per rank: spans of tasks, transfers and epilogues, and memory steps.
  std::vector<uint32_t> fixed_spans{};
  std::vector<uint32_t> memory_steps{};
  // Whether links serve alike in whatever order ranks are run: then no rank
  // needs to stop for another's clock.
  bool order_free = true;
  bool fair_links = false;

  absl::Span<const StepOp> ops_of(int32_t rank) const {
    const auto r = static_cast<size_t>(rank);
    return absl::MakeConstSpan(ops).subspan(op_begin[r],
                                            op_begin[r + 1] - op_begin[r]);
  }
};

// What compiling needs besides its result: pass the same one again, so that
// nothing is allocated.
struct CompileScratch {
  struct Ends {
    int32_t from = -1;
    int32_t to = -1;
    int32_t link = kNoLink;
    uint32_t sent = 0;  // As the how many-th of its link, from 1; 0: not.
    uint32_t received = 0;
  };
  std::vector<uint32_t> place_of_edge{};
  std::vector<Ends> ends{};  // By transfer.
  std::vector<Bytes> sent_by_task{};
};

// FailedPrecondition and InvalidArgument as EmulateStep, but for deadlocks.
// O(instructions + dependencies). The second form replaces what `program`
// holds and reuses its memory; after an error it holds nothing of use.
absl::StatusOr<StepProgram> CompileStep(const ExecutionPlan& plan,
                                        const EmulateOptions& options);
absl::Status CompileStep(const ExecutionPlan& plan,
                         const EmulateOptions& options, StepProgram* program,
                         CompileScratch* scratch);

// What everything takes, slow ranks and links applied. REQUIRES: `program` was
// compiled from a plan with the same structure.
StepTimes TimesOf(const StepProgram& program, const ExecutionPlan& plan,
                  const EmulateOptions& options);
void TimesOf(const StepProgram& program, const ExecutionPlan& plan,
             const EmulateOptions& options, StepTimes* times);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_STEP_PROGRAM_H_
