// Measured traces of a pipeline run, one file a rank or one for all, become a
// plan with measured costs and the StepTrace of what happened.
//
// Events that are taken, with the microbatch and stage in them:
//
//   args pass, module, stage, microbatch   what `pipeloom run --trace` writes
//   "PP:2F5", "2B5", "2I5", "2W5"          torch.distributed.pipelining, by
//                                          stage, action and microbatch
//   "PP:2SEND_F5", "PP:3RECV_F5"           its transfers
//   "Forward 5", "Backward 5"              the same of one stage a rank
//
// A rank is what "distributedInfo" says, an event's args, or the number of the
// file. Ranks of several files have clocks of their own, which are brought
// together from the tensors that tasks wait for
// (emulator/trace/clock_alignment.h). What a task waits for: its args "inputs",
// where they are there; else the forward of the stage before, and back.
#ifndef PIPELOOM_CLI_TRACE_TRACE_IMPORT_H_
#define PIPELOOM_CLI_TRACE_TRACE_IMPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/trace/trace_events.h"
#include "emulator/trace/clock_alignment.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

struct ImportedStep {
  // Measured order; passes its check. A task takes its measured duration and
  // its rank's hand-over, a link the median of what it let receivers wait.
  ExecutionPlan plan{};
  StepTrace measured{};  // On the common clock, from the first task's start.
  IdVector<RankId, emulator::ClockFit> clocks{};
  // What a rank does between two tasks when nothing has to be waited for
  // (median): launches, copies, the trainer's own code.
  IdVector<RankId, Duration> handover{};
  int64_t events = 0;      // In the files.
  int32_t iterations = 0;  // How often a step's tasks are there.
};

// `iteration` counts from 0; -1: the last that is whole. InvalidArgument names
// the file and the fault, or says what is missing; a trace without a task of a
// pipeline lists what was looked for.
absl::StatusOr<ImportedStep> ImportTrace(
    const std::vector<TraceSource>& sources, int32_t iteration = -1);

// What a stage's tasks of one pass took.
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

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TRACE_TRACE_IMPORT_H_
