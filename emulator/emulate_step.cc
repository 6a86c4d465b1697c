#include "emulator/emulate_step.h"

#include "base/status_macros.h"
#include "emulator/step_engine.h"
#include "emulator/step_program.h"
#include "emulator/trace_builder.h"

namespace pipeloom::emulator {

absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(const StepProgram program,
                            CompileStep(plan, options));
  StepEngine engine(program, TimesOf(program, plan, options));
  PIPELOOM_RETURN_IF_ERROR(engine.Run());
  StepTrace trace;
  BuildTrace(plan.graph, engine, options.full_trace, &trace);
  return trace;
}

}  // namespace pipeloom::emulator
