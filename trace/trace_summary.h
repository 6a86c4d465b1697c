// The use of time and memory in a step: sums over a StepTrace, and the chain of
// tasks and transfers that determines its length.
#ifndef PIPELOOM_TRACE_TRACE_SUMMARY_H_
#define PIPELOOM_TRACE_TRACE_SUMMARY_H_

#include <cstdint>
#include <vector>

#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::trace {

inline constexpr int kNumPasses = 3;

// One rank's time by use. The parts add up to the step time.
struct RankSummary {
  Duration pass[kNumPasses] = {};  // Compute time, indexed by Pass.
  Duration warm_up{};              // Before its first task.
  Duration stalls{};               // Between its tasks.
  Duration drain{};                // After its last task, less the epilogue.
  Duration epilogue{};             // Gradient reduction, optimizer step.
  int32_t num_tasks = 0;
  MemoryPeak peak{};
  Duration busy() const { return pass[0] + pass[1] + pass[2]; }
};

// Times of one module, indexed by Pass.
struct ModuleTimes {
  Duration pass[kNumPasses] = {};
};

struct TraceSummary {
  IdVector<RankId, RankSummary> ranks{};
  IdVector<ModuleId, ModuleTimes> modules{};  // Over all ranks.
  double bubble_ratio = 0;                    // Idle share of rank time.
  double epilogue_ratio = 0;                  // Epilogues' share of rank time.
};
// Returns whether the trace says how much memory the ranks hold. Traces that
// were made from measured times alone do not.
bool HasMemory(const StepTrace& trace);

TraceSummary Summarize(const StageGraph& graph, const StepTrace& trace);

// The chain of tasks back from the end of the step, where each task waited for
// the one before: the previous task of its rank, or the producer whose tensor
// came last. The parts add up to the step time.
struct CriticalPath {
  std::vector<TaskId> tasks{};  // First to last.
  IdVector<ModuleId, ModuleTimes> compute{};
  Duration transfer{};  // Between a producer's end and its consumer's start.
  Duration other{};     // Gaps on one rank, the time before the first task.
  Duration epilogue{};
  int32_t rank_changes = 0;
};
CriticalPath FindCriticalPath(const StageGraph& graph, const StepTrace& trace);

// Returns each task's span, which points into `trace`; null for tasks without
// one.
IdVector<TaskId, const Span*> TaskSpans(const StageGraph& graph,
                                        const StepTrace& trace);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_TRACE_SUMMARY_H_
