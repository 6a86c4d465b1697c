// Conversion of an engine's last run to a StepTrace. Goes through the ranks
// again, each along its program with all times known, and writes every span and
// memory step once, in its place.
#ifndef PIPELOOM_EMULATOR_STEP_TRACE_BUILDER_H_
#define PIPELOOM_EMULATOR_STEP_TRACE_BUILDER_H_

#include "emulator/step/step_engine.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::emulator {

// Replaces the contents of `trace` and reuses its memory. With `full` off
// writes only the spans of tasks and the finish. REQUIRES: the engine's last
// run succeeded and its program was compiled from a plan of `graph`.
void BuildTrace(const StageGraph& graph, const StepEngine& engine, bool full,
                StepTrace* trace);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_TRACE_BUILDER_H_
