// The trace of a step that ran or was emulated: spans by rank and stream, and
// memory changes by rank and item. The emulator and the runtime both return
// one, so prediction error is a subtraction.
#ifndef PIPELOOM_IR_PLAN_STEP_TRACE_H_
#define PIPELOOM_IR_PLAN_STEP_TRACE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom {

// The streams of a rank.
enum class Stream : uint8_t { kCompute, kSend, kReceive, kCopy };

// The meaning of a span.
enum class SpanKind : uint8_t {
  kTask,      // `task` computes.
  kTransfer,  // `edge` crosses a link (on the sender's kSend stream).
  kWait,      // The rank's program is blocked on `edge`.
  kEpilogue,  // Gradient reduction and optimizer step.
};

// A time span on a stream of a rank.
struct Span {
  RankId rank{};
  Stream stream = Stream::kCompute;
  SpanKind kind = SpanKind::kTask;
  TaskId task{};  // None unless kTask.
  EdgeId edge{};  // None unless kTransfer or kWait.
  SimTime start{};
  SimTime end{};
  bool operator==(const Span&) const = default;
};

// The items of memory in a trace.
enum class MemoryItem : uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kOverhead,     // Context, allocator, workspace.
  kActivations,  // Held by tasks between forward and backward.
  kReceived,     // Boundary tensors from Recv to Free.
  // Boundary tensors from the task that makes them to WaitSend or, on the same
  // rank, to the start of their consumer.
  kSent,
};
inline constexpr int kNumMemoryItems = 7;
// Returns the name of an item, for traces in text form and for messages.
const char* MemoryItemName(MemoryItem item);

// A change of a memory item of a rank.
struct MemoryStep {
  RankId rank{};
  SimTime at{};
  MemoryItem item = MemoryItem::kActivations;
  Bytes delta{};
  bool operator==(const MemoryStep&) const = default;
};

// The trace of one step on all ranks.
struct StepTrace {
  int32_t num_ranks = 0;
  std::vector<Span> spans{};  // Sorted by rank, then start.
  // Sorted by rank, then time, in program order.
  std::vector<MemoryStep> memory{};
  SimTime finish{};  // End of the step.
  bool operator==(const StepTrace&) const = default;

  Duration step_time() const { return finish - kStepStart; }
};

// The largest sum of a rank's memory items, when it was reached and how much of
// it each item is.
struct MemoryPeak {
  Bytes total{};
  SimTime at{};
  Bytes items[kNumMemoryItems] = {};
  bool operator==(const MemoryPeak&) const = default;
};
// Returns the peaks, indexed by rank.
IdVector<RankId, MemoryPeak> MemoryPeaks(const StepTrace& trace);

// Returns the tasks of each rank in the order they ran.
IdVector<RankId, std::vector<TaskId>> TaskOrders(const StepTrace& trace);

// A measured step compared with its prediction, both of one plan.
struct TraceComparison {
  Duration predicted_step_time{};
  Duration measured_step_time{};
  double step_time_error = 0;  // measured / predicted - 1
  // Mean over tasks of |measured / predicted - 1|.
  double mean_task_time_error = 0;
  bool same_order = false;  // Every rank ran its tasks in the predicted order.
};
// Compares a measured trace with the predicted one of the same plan.
TraceComparison CompareTraces(const StepTrace& predicted,
                              const StepTrace& measured);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_STEP_TRACE_H_
