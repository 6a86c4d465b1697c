// Where the time and memory of a step went: sums over a StepTrace, and the
// chain of tasks and transfers that its length follows from.
#ifndef PIPELOOM_CLI_TRACE_TRACE_SUMMARY_H_
#define PIPELOOM_CLI_TRACE_TRACE_SUMMARY_H_

#include <cstdint>
#include <vector>

#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

inline constexpr int kNumPasses = 3;

// The parts add up to the step time.
struct RankSummary {
  Duration pass[kNumPasses] = {};  // Compute, by Pass.
  Duration warm_up{};              // Before its first task.
  Duration stalls{};               // Between its tasks.
  Duration drain{};                // After its last task, less the epilogue.
  Duration epilogue{};             // Gradient reduction, optimizer step.
  int32_t num_tasks = 0;
  MemoryPeak peak{};
  Duration busy() const { return pass[0] + pass[1] + pass[2]; }
};

// Times of one kind by module and pass.
struct ModuleTimes {
  Duration pass[kNumPasses] = {};
};

struct TraceSummary {
  IdVector<RankId, RankSummary> ranks{};
  IdVector<ModuleId, ModuleTimes> modules{};  // Over all ranks.
  double bubble_ratio = 0;                    // Idle rank time.
  double epilogue_ratio = 0;                  // Rank time of the epilogues.
};
TraceSummary Summarize(const StageGraph& graph, const StepTrace& trace);

// Back from the end of the step, each time to what the task waited for: the
// task before it on its rank, or the producer whose tensor came last. The
// parts add up to the step time.
struct CriticalPath {
  std::vector<TaskId> tasks{};  // First to last.
  IdVector<ModuleId, ModuleTimes> compute{};
  Duration transfer{};  // Between a producer's end and its consumer's start.
  Duration other{};     // Gaps on one rank, the time before the first task.
  Duration epilogue{};
  int32_t rank_changes = 0;
};
CriticalPath FindCriticalPath(const StageGraph& graph, const StepTrace& trace);

// Each task's span; nullptr where the trace has none. Points into `trace`.
IdVector<TaskId, const Span*> TaskSpans(const StageGraph& graph,
                                        const StepTrace& trace);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TRACE_TRACE_SUMMARY_H_
