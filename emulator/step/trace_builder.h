// From an engine's last run to a StepTrace. Ranks are gone through once more,
// each by itself along its program with all times known, and every span and
// memory step is written once, in its place.
#ifndef PIPELOOM_EMULATOR_STEP_TRACE_BUILDER_H_
#define PIPELOOM_EMULATOR_STEP_TRACE_BUILDER_H_

#include "emulator/step/step_engine.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::emulator {

// Replaces what `trace` holds and reuses its memory. With `full` off only the
// spans of tasks and the finish. REQUIRES: the engine's last run ended well and
// its program was compiled from a plan of `graph`.
void BuildTrace(const StageGraph& graph, const StepEngine& engine, bool full,
                StepTrace* trace);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_TRACE_BUILDER_H_
