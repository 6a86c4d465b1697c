// Analysis of a StepTrace: what every task waited for, the chain of tasks and
// transfers that determines the step's length, and the causes of each rank's
// idle time.
//
// Works on emulated and on measured traces: waits in a trace say what a rank
// was blocked on; in a trace without waits, what came last does.
//
// Idle time of a rank is the step less its tasks and its epilogue. Each idle
// piece has one cause:
//
//   warm-up     before the rank's first task
//   tail        after its last task
//   order       a later task of the rank was ready, would have fit into the
//               gap, and memory had room for it: the order was chosen so
//   memory      the same, but memory had no room; or offloaded activations
//               were on their way back
//   transfer    the awaited tensor was on a link, or a send blocked
//   imbalance   the awaited producer had its inputs, but its rank had other
//               work before it; in all at most what that rank has more to do
//               than this one in the step
//   dependency  any other wait for a producer, or for a delay inside the rank
//   other       none of these: start-up time of a measured task
//
// Pure functions. O(spans log spans + idle pieces * kMaxCandidates).
#ifndef PIPELOOM_TRACE_TRACE_ANALYSIS_H_
#define PIPELOOM_TRACE_TRACE_ANALYSIS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/units.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::trace {

// The last condition to be fulfilled before a task started.
enum class StartReason : uint8_t {
  kStepStart,    // Nothing was before it.
  kOwnRank,      // Its rank finished task `after`.
  kMessage,      // The tensor of `edge` arrived.
  kLocalInput,   // The delay of `edge`, inside its rank, ended.
  kBlockedSend,  // Its rank was blocked on sending `edge`.
  kMemory,       // Offloaded activations were fetched back.
};

// The reason why a task did not start earlier.
struct StartCause {
  StartReason reason = StartReason::kStepStart;
  TaskId after{};   // The task before it on its rank, or the edge's producer.
  EdgeId edge{};    // Edge of a message, an input or a send.
  Duration gap{};   // How long its rank had been idle.
  SimTime ready{};  // When all its inputs could be there.
  bool operator==(const StartCause&) const = default;
};

// The causes of idle time.
enum class BubbleKind : uint8_t {
  kWarmUp,
  kImbalance,
  kDependency,
  kTransfer,
  kMemory,
  kOrder,
  kTail,
  kOther,
};
inline constexpr int kNumBubbleKinds = 8;
// Returns "warm-up", "imbalance", ...
absl::string_view BubbleName(BubbleKind kind);

// A piece of a rank's idle time with its cause.
struct IdlePiece {
  RankId rank{};
  BubbleKind kind = BubbleKind::kOther;
  SimTime start{};
  SimTime end{};
  TaskId before{};   // The rank's next task; none at its end.
  EdgeId edge{};     // The awaited edge, if any.
  TaskId instead{};  // kOrder, kMemory: the task that was ready.
  bool operator==(const IdlePiece&) const = default;
};

using BubbleTimes = std::array<Duration, kNumBubbleKinds>;
// Returns the sum over all causes.
Duration Total(const BubbleTimes& times);

// A part of the critical path. Parts follow each other without a gap from the
// start of the step to its end.
struct PathPiece {
  enum class Kind : uint8_t {
    kTask,
    kTransfer,  // `edge` is on its way, or its delay runs.
    kQueue,     // `edge` waits for its link or for its receive to be posted.
    kEpilogue,
    kGap,  // The rank is idle without an awaited tensor.
  };
  Kind kind = Kind::kGap;
  RankId rank{};
  TaskId task{};
  EdgeId edge{};
  SimTime start{};
  SimTime end{};
  bool operator==(const PathPiece&) const = default;
};

// The result of Analyze().
struct TraceAnalysis {
  IdVector<TaskId, StartCause> causes{};
  // Start and end, indexed by task; start > end for tasks without a span.
  IdVector<TaskId, SimTime> start{};
  IdVector<TaskId, SimTime> end{};
  std::vector<PathPiece> critical{};  // From the step's start to its end.
  std::vector<IdlePiece> idle{};      // Sorted by rank, then time.
  IdVector<RankId, BubbleTimes> bubbles{};

  bool HasSpan(TaskId task) const { return start[task] <= end[task]; }
};

// Analyzes a trace of the plan. Ignores tasks and edges that the plan's graph
// does not have.
TraceAnalysis Analyze(const ExecutionPlan& plan, const StepTrace& trace);

// Describes a cause in one line: "the tensor (12 MiB) of F encoder ... on rank
// 1 arrived".
std::string Words(const StageGraph& graph, const StartCause& cause);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_TRACE_ANALYSIS_H_
