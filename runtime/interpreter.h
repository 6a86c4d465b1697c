// One rank's instruction loop.
//
// Executes the rank's program strictly in order on its device and transport,
// and records spans of wall time on the plan's clock. The emulator carries the
// same instructions out in simulated time (docs/plan_format.md).
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

// What a rank runs with; all outlive the Interpreter.
struct InterpreterContext {
  const ExecutionPlan* plan = nullptr;  // Passes ValidateExecutionPlan.
  RankId rank{};
  RankClock* clock = nullptr;
  Device* device = nullptr;
  Transport* transport = nullptr;
  BufferTable* buffers = nullptr;
  MemoryAccount* account = nullptr;  // Of the tensors that are sent.
  CommitGate* commit = nullptr;
  // Of every wait for another rank.
  WallTime deadline{};
  RankProgress* progress = nullptr;
};

// One object runs one program once, on the thread that calls Run.
class Interpreter {
 public:
  explicit Interpreter(const InterpreterContext& context);

  // The first instruction's error, unchanged; the progress tells which it was.
  // What a device throws is an error of its instruction: ResourceExhausted for
  // std::bad_alloc, else Internal.
  absl::Status Run();

  // Of this rank's streams, and the transfers it received (those have the
  // sender's rank).
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
  // Waits until `until`; a span from the rank's progress `since`, if that is
  // earlier.
  absl::Status AwaitTransfer(EdgeId edge, WallTime until, WallTime since);
  // A wait that has ended.
  absl::Status AddWait(EdgeId edge, WallTime end, WallTime since);
  // On the copy stream, named by an edge of the task, as the emulator's is.
  void AddCopySpan(TaskId task, const CopyTimes& times);
  void AddSpan(Stream stream, SpanKind kind, TaskId task, EdgeId edge,
               SimTime start);

  InterpreterContext context_;
  const StageGraph& graph_;
  absl::flat_hash_map<TaskId, WallTime> delayed_;  // Ends others wait after.
  bool arrived_ = false;                           // At the commit point.
  std::vector<Span> spans_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_INTERPRETER_H_
