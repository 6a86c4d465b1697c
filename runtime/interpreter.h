// The instruction loop of one rank.
//
// It executes the rank's program strictly in order on its device and transport,
// and records spans of wall time on the plan's clock. The emulator carries out
// the same instructions in simulated time (docs/plan_format.md).
#ifndef PIPELOOM_RUNTIME_INTERPRETER_H_
#define PIPELOOM_RUNTIME_INTERPRETER_H_

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"
#include "runtime/buffer_table.h"
#include "runtime/commit_point.h"
#include "runtime/device.h"
#include "runtime/memory_account.h"
#include "runtime/rank_clock.h"
#include "runtime/rank_progress.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

// The parts that a rank runs with. All pointers outlive the Interpreter.
struct InterpreterContext {
  const ExecutionPlan* plan = nullptr;  // Passes ValidateExecutionPlan.
  RankId rank{};
  RankClock* clock = nullptr;
  Device* device = nullptr;
  Transport* transport = nullptr;
  BufferTable* buffers = nullptr;
  MemoryAccount* account = nullptr;  // Charged for tensors being sent.
  CommitGate* commit = nullptr;
  // The deadline of every wait for another rank.
  WallTime deadline{};
  RankProgress* progress = nullptr;
};

// Runs one program once, on the thread that calls Run.
class Interpreter {
 public:
  explicit Interpreter(const InterpreterContext& context);

  // Runs the program. Returns the error of the first instruction that fails,
  // unchanged; the progress tells which instruction it was. An exception of a
  // device is an error of its instruction: ResourceExhausted for
  // std::bad_alloc, else Internal.
  absl::Status Run();

  // Returns the spans of this rank's streams and of the transfers that it
  // received; the latter have the sender's rank.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  absl::Status RunInstructions();
  absl::Status Execute(const Compute& i);
  absl::Status Execute(const Send& i);
  absl::Status Execute(const Recv& i);
  absl::Status Execute(const WaitRecv& i);
  absl::Status Execute(const WaitSend& i);
  absl::Status Execute(const Free& i);
  absl::Status Execute(const Offload& i);
  absl::Status Execute(const Fetch& i);
  absl::Status Execute(const ReduceGradients& i);
  absl::Status Execute(const OptimizerStep& i);

  Message MessageOf(EdgeId edge) const;
  // Waits for dependencies inside the rank that have a delay.
  absl::Status AwaitLocalInputs(TaskId task);
  // Waits until `until`. Adds a wait span that begins at the rank's progress
  // `since`, if that is earlier than `until`.
  absl::Status AwaitTransfer(EdgeId edge, WallTime until, WallTime since);
  // Adds the span of a wait that has ended.
  absl::Status AddWait(EdgeId edge, WallTime end, WallTime since);
  // Adds a span on the copy stream. It names an edge of the task, as the
  // emulator's copy spans do.
  void AddCopySpan(TaskId task, const CopyTimes& times);
  void AddSpan(Stream stream, SpanKind kind, TaskId task, EdgeId edge,
               SimTime start);

  InterpreterContext context_;
  const StageGraph& graph_;
  // Ends of tasks whose consumers on this rank wait for a delay.
  absl::flat_hash_map<TaskId, WallTime> delayed_;
  bool arrived_ = false;  // At the commit point.
  std::vector<Span> spans_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_INTERPRETER_H_
