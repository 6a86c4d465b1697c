// Collects the spans and memory steps of ranks and puts them in a StepTrace's
// order.
#ifndef PIPELOOM_EMULATOR_TRACE_BUILDER_H_
#define PIPELOOM_EMULATOR_TRACE_BUILDER_H_

#include <vector>

#include "ir/execution_plan.h"
#include "ir/step_trace.h"

namespace pipeloom::emulator {

class TraceBuilder {
 public:
  // Reserves for the plan and records what is held all step long. With
  // `full` off only AddTask keeps anything.
  TraceBuilder(const ExecutionPlan& plan, bool full);

  // A rank's calls of AddTask, AddWait and AddEpilogue come in order of time,
  // those of AddTransfer and AddMemory in any.
  void AddTask(RankId rank, TaskId task, SimTime start, SimTime end) {
    ranks_[rank].program.push_back(
        {.rank = rank, .task = task, .start = start, .end = end});
  }
  // No span if nothing was waited for.
  void AddWait(RankId rank, EdgeId edge, SimTime start, SimTime end);
  void AddEpilogue(RankId rank, SimTime start, SimTime end);
  void AddTransfer(RankId sender, EdgeId edge, SimTime start, SimTime end);
  void AddMemory(RankId rank, SimTime at, MemoryItem item, Bytes delta);

  // Leaves the builder empty.
  StepTrace Build(SimTime finish);

 private:
  struct RankTrace {
    std::vector<Span> program{};    // Compute stream.
    std::vector<Span> transfers{};  // Send stream.
    std::vector<MemoryStep> memory{};
  };

  bool full_;
  IdVector<RankId, RankTrace> ranks_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_TRACE_BUILDER_H_
