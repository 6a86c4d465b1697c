// An ExecutionPlan compiled for emulation: flat arrays, one operation of 4
// bytes per instruction, and everything an instruction needs looked up
// beforehand. Compiled once for any number of runs, also with other durations.
//
// Tasks and transfers are renumbered in the order in which the programs name
// them, so that a rank goes through all arrays from front to back.
//
// The structure (operations, links, who waits for whom) is separate from the
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

// The operations, with the meaning of StepOp::index.
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

// One operation of a rank.
struct StepOp {
  static constexpr uint32_t kMaxIndex = (uint32_t{1} << 28) - 1;

  StepOp() = default;
  StepOp(uint32_t at, OpCode what) : index(at & kMaxIndex), code(what) {}

  uint32_t index : 28 = 0;
  OpCode code : 4 = OpCode::kNothing;
};
static_assert(sizeof(StepOp) == 4);

// A route from one rank to another. Links are FIFO resources by index; kNoLink:
// none.
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
  // Shown in its span: the task's first edge inside the rank, else its first.
  EdgeId edge{};
  Bytes payload{};
};

// A compute that has to wait for copies of its rank, or for a delay inside it.
struct Guard {
  struct Local {
    uint32_t slot = 0;   // Slot of the producer.
    uint32_t index = 0;  // Index into `local_edges`.
    EdgeId edge{};
  };
  uint32_t slot = 0;
  std::vector<uint32_t> fetches{};  // Indices into `copies`, executed before.
  std::vector<Local> locals{};
};

// Times in nanoseconds; the sizes are those of the program's arrays.
struct StepTimes {
  std::vector<int64_t> durations{};  // Indexed by slot.
  struct Edge {
    int64_t occupancy = 0;
    int64_t lag = 0;    // From the link's release to arrival.
    int64_t ahead = 0;  // From the send, before it begins; occupies the link.
  };
  std::vector<Edge> transfers{};
  std::vector<int64_t> local_lags{};  // Indexed by local edge.
  std::vector<int64_t> copies{};
  std::vector<int64_t> epilogues{};  // Indexed by rank.
};

// The compiled plan.
struct StepProgram {
  int32_t num_ranks = 0;
  std::vector<StepOp> ops{};  // Sorted by rank, in program order.
  // First operation of each rank, and the end.
  std::vector<uint32_t> op_begin{};
  // Tasks, numbered along the ranks' programs. Indexed by slot.
  std::vector<TaskId> task_of_slot{};
  // Memory that a slot's task takes at its start and releases at its end. It
  // also takes `sent` at its start for tensors to other ranks, until the sends
  // are waited for.
  struct SlotMemory {
    Bytes alloc{};
    Bytes free{};
    Bytes made{};  // BoundaryBytes (ir/plan/execution_plan.h).
    Bytes taken{};
  };
  std::vector<SlotMemory> memory_of_slot{};
  // The edges that instructions send or receive.
  struct Transfer {
    EdgeId edge{};
    uint32_t route = 0;
    bool operator==(const Transfer&) const = default;
  };
  std::vector<Transfer> transfers{};
  std::vector<Bytes> payloads{};  // Indexed by transfer.
  std::vector<EdgeRoute> routes{};
  const EdgeRoute& route_of(uint32_t transfer) const {
    return routes[transfers[transfer].route];
  }
  int32_t num_links = 0;
  std::vector<HostCopy> copies{};
  // Indexed by rank; empty: each has its own.
  std::vector<int32_t> host_link{};
  std::vector<Guard> guards{};
  // Edges with a delay that guards wait for.
  std::vector<EdgeId> local_edges{};
  // Numbers of spans of tasks, transfers and epilogues, and of memory steps.
  // Indexed by rank.
  std::vector<uint32_t> fixed_spans{};
  std::vector<uint32_t> memory_steps{};
  // Whether the order in which ranks are run makes no difference to the links:
  // then no rank needs to stop for another's clock.
  bool order_free = true;
  bool fair_links = false;

  absl::Span<const StepOp> ops_of(int32_t rank) const {
    const auto r = static_cast<size_t>(rank);
    return absl::MakeConstSpan(ops).subspan(op_begin[r],
                                            op_begin[r + 1] - op_begin[r]);
  }
};

// Memory that compiling needs in addition to its result. Pass the same one
// again to allocate nothing.
struct CompileScratch {
  struct Ends {
    int32_t from = -1;
    int32_t to = -1;
    int32_t link = kNoLink;
    // Its number among the sends of its link, from 1; 0: not sent.
    uint32_t sent = 0;
    uint32_t received = 0;  // Likewise among the receives.
  };
  std::vector<uint32_t> place_of_edge{};
  std::vector<Ends> ends{};  // Indexed by transfer.
  // Indexed by task.
  std::vector<Bytes> made{};
  std::vector<Bytes> taken{};
};

// Compile a plan. Return the FailedPrecondition and InvalidArgument of
// EmulateStep, except for deadlocks. O(instructions + dependencies). The second
// form replaces the contents of `program` and reuses its memory; after an error
// they are unspecified.
absl::StatusOr<StepProgram> CompileStep(const ExecutionPlan& plan,
                                        const EmulateOptions& options);
absl::Status CompileStep(const ExecutionPlan& plan,
                         const EmulateOptions& options, StepProgram* program,
                         CompileScratch* scratch);

// Return the times of everything, with slow ranks and links applied. REQUIRES:
// `program` was compiled from a plan with the same structure.
StepTimes TimesOf(const StepProgram& program, const ExecutionPlan& plan,
                  const EmulateOptions& options);
void TimesOf(const StepProgram& program, const ExecutionPlan& plan,
             const EmulateOptions& options, StepTimes* times);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_STEP_PROGRAM_H_
