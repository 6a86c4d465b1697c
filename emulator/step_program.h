// An ExecutionPlan compiled for emulation: flat arrays, one 8-byte operation
// an instruction, and what an instruction needs found beforehand. Compiled
// once for any number of runs, with other durations if need be.
//
// The structure (operations, links, who waits for whom) is apart from the
// times (StepTimes): it does not depend on what anything costs.
//
// Plain data: safe from any number of threads once made.
#ifndef PIPELOOM_EMULATOR_STEP_PROGRAM_H_
#define PIPELOOM_EMULATOR_STEP_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "emulator/emulate_step.h"
#include "ir/execution_plan.h"

namespace pipeloom::emulator {

enum class OpCode : uint8_t {
  kCompute,         // index: slot
  kComputeGuarded,  // index: into `guards`; waits inside its rank first
  kSend,            // index: edge, as for the next five
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
  uint32_t index = 0;
  OpCode code = OpCode::kNothing;
};

// Where a transfer goes. Links are FIFO resources by index; kNoLink: none.
inline constexpr int32_t kNoLink = -1;
struct EdgeRoute {
  int32_t from = -1;  // Ranks. -1: the edge stays inside a rank.
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
    uint32_t slot = 0;  // Of the producer.
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
  std::vector<Edge> edges{};
  std::vector<int64_t> copies{};
  std::vector<int64_t> epilogues{};  // By rank.
};

struct StepProgram {
  int32_t num_ranks = 0;
  std::vector<StepOp> ops{};         // By rank, in order.
  std::vector<uint32_t> op_begin{};  // By rank, and the end.
  // Computes numbered along the ranks' programs: slot -> task.
  std::vector<TaskId> task_of_slot{};
  // What a slot's task takes at its start and gives back at its end.
  struct SlotMemory {
    Bytes alloc{};
    Bytes free{};
  };
  std::vector<SlotMemory> memory_of_slot{};
  std::vector<EdgeRoute> edges{};  // By EdgeId.
  std::vector<Bytes> payloads{};   // By EdgeId.
  int32_t num_links = 0;
  std::vector<HostCopy> copies{};
  std::vector<int32_t> host_link{};  // By rank; empty: each its own.
  std::vector<Guard> guards{};
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

// FailedPrecondition and InvalidArgument as EmulateStep, but for deadlocks.
// O(instructions + dependencies).
absl::StatusOr<StepProgram> CompileStep(const ExecutionPlan& plan,
                                        const EmulateOptions& options);

// What everything takes, slow ranks and links applied. REQUIRES: `program` was
// compiled from a plan with the same structure.
StepTimes TimesOf(const StepProgram& program, const ExecutionPlan& plan,
                  const EmulateOptions& options);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_PROGRAM_H_
