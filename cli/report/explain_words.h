// The paragraphs of `pipeloom explain`, as text for a terminal.
#ifndef PIPELOOM_CLI_REPORT_EXPLAIN_WORDS_H_
#define PIPELOOM_CLI_REPORT_EXPLAIN_WORDS_H_

#include <string>

#include "emulator/trace/trace_analysis.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

// To what each rank lost its idle time, a row a rank and a bar.
std::string BubbleWords(const StageGraph& graph, const StepTrace& trace,
                        const emulator::TraceAnalysis& analysis, RankId only);

// The waits of one microbatch, or, with none, of that which waits longest: the
// tasks that stood ready for long and what ran instead.
std::string WaitWords(const StageGraph& graph,
                      const emulator::TraceAnalysis& analysis,
                      MicrobatchId microbatch);

// What fills the rank that comes nearest to its limit (or holds most), when,
// and how many microbatches it holds then.
std::string MemoryLimitWords(const StageGraph& graph, const StepTrace& trace,
                             const emulator::TraceAnalysis& analysis);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_EXPLAIN_WORDS_H_
