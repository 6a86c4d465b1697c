#include "emulator/step/emulate_step.h"

#include <utility>

#include "base/status_macros.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"
#include "emulator/step/trace_builder.h"

namespace pipeloom::emulator {

struct StepEmulator::State {
  StepProgram program{};
  CompileScratch scratch{};
  StepTimes times{};
  StepEngine engine{};
};

StepEmulator::StepEmulator() : state_(std::make_unique<State>()) {}
StepEmulator::~StepEmulator() = default;

absl::Status StepEmulator::Emulate(const ExecutionPlan& plan,
                                   const EmulateOptions& options,
                                   StepTrace* trace) {
  State& s = *state_;
  PIPELOOM_RETURN_IF_ERROR(CompileStep(plan, options, &s.program, &s.scratch));
  TimesOf(s.program, plan, options, &s.times);
  s.engine.Load(s.program, s.times);
  PIPELOOM_RETURN_IF_ERROR(s.engine.Run());
  BuildTrace(plan.graph, s.engine, options.full_trace, trace);
  return absl::OkStatus();
}

absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options) {
  StepEmulator emulator;
  StepTrace trace;
  PIPELOOM_RETURN_IF_ERROR(emulator.Emulate(plan, options, &trace));
  return trace;
}

}  // namespace pipeloom::emulator
