// Import of measured traces of a pipeline run, one file per rank or one for
// all, as a plan with measured costs and the measured StepTrace.
//
// Events that are read, with their microbatch and stage:
//
//   args pass, module, stage, microbatch   what `pipeloom run --trace` writes
//   "PP:2F5", "2B5", "2I5", "2W5"          torch.distributed.pipelining, by
//                                          stage, action and microbatch
//   "PP:2SEND_F5", "PP:3RECV_F5"           its transfers
//   "Forward 5", "Backward 5"              the same of one stage a rank
//
// Tasks with an argument "step" belong together if it is equal: a training's
// steps need not have the same tasks. Tasks without "inputs" must be whole:
// every stage of a module has the microbatches of the others, and iterations
// follow each other on each rank.
//
// The rank is taken from "distributedInfo", an event's args, or the number in
// the file name. Ranks of several files have clocks of their own, which are
// aligned by the tensors that tasks wait for
// (trace/clock_alignment.h). A task waits for its args "inputs" if it
// has any; else a forward for that of the stage before, a backward for that of
// the stage behind.
#ifndef PIPELOOM_TRACE_TRACE_IMPORT_H_
#define PIPELOOM_TRACE_TRACE_IMPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/plan/step_trace.h"
#include "trace/clock_alignment.h"
#include "trace/trace_events.h"

namespace pipeloom::trace {

struct ImportedStep {
  // The plan with the measured order, which passes ValidateExecutionPlan. A
  // task takes its measured duration plus its rank's hand-over, a link the
  // median time for which it made receivers wait.
  ExecutionPlan plan{};
  RankOrders order{};    // The measured order of the plan's tasks.
  StepTrace measured{};  // On the common clock, from the first task's start.
  IdVector<RankId, ClockFit> clocks{};
  // The median time between two tasks of a rank when there is nothing to wait
  // for: launches, copies, the trainer's own code.
  IdVector<RankId, Duration> handover{};
  std::optional<int32_t> number{};  // The training's step, if tasks say it.
  int64_t events = 0;               // Number of events in the files.
  int32_t iterations = 0;           // Number of steps in the files.
};

// Imports one step. `iteration` counts from 0; -1: the last complete one.
// InvalidArgument names the file and the fault, or says what is missing; for a
// trace without pipeline tasks it lists the events that were looked for.
absl::StatusOr<ImportedStep> ImportTrace(
    const std::vector<TraceSource>& sources, int32_t iteration = -1);

// The measured times of a stage's tasks of one pass.
struct MeasuredCost {
  ModuleId module{};
  StageId stage{};
  Pass pass = Pass::kForward;
  int32_t count = 0;
  Duration mean{};
  Duration median{};
  Duration most{};
};
std::vector<MeasuredCost> CostsOf(const StageGraph& graph);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_TRACE_IMPORT_H_
