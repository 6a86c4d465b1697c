// The paragraphs of `pipeloom explain`, as text for a terminal.
#ifndef PIPELOOM_CLI_REPORT_EXPLAIN_WORDS_H_
#define PIPELOOM_CLI_REPORT_EXPLAIN_WORDS_H_

#include <string>

#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"
#include "trace/trace_analysis.h"

namespace pipeloom::cli {

// Returns the causes of each rank's idle time: a row per rank, and a bar. Of
// one rank only, unless `only` is none.
std::string BubbleWords(const StageGraph& graph, const StepTrace& trace,
                        const trace::TraceAnalysis& analysis, RankId only);

// Returns the waits of a microbatch, or, if it is none, of the microbatch that
// waits longest: the tasks that were ready for long, and the tasks that ran
// instead.
std::string WaitWords(const StageGraph& graph,
                      const trace::TraceAnalysis& analysis,
                      MicrobatchId microbatch);

// Describes the peak memory of the rank that comes nearest to its limit (or
// holds most): its items, its time and the number of microbatches held then.
std::string MemoryLimitWords(const StageGraph& graph, const StepTrace& trace,
                             const trace::TraceAnalysis& analysis);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_EXPLAIN_WORDS_H_
