// The data that the script of the report (cli/report/step_data.js) reads: a
// step as JSON, in columns. Times are nanoseconds from the step's start.
#ifndef PIPELOOM_CLI_REPORT_REPORT_DATA_H_
#define PIPELOOM_CLI_REPORT_REPORT_DATA_H_

#include <string>

#include "cli/report/report_step.h"
#include "formats/text/json_writer.h"
#include "trace/trace_analysis.h"

namespace pipeloom::cli {

// Appends one object with these keys:
//   tasks      r rank, p pass, m module, s stage, b microbatch,
//              u sub-microbatch, x recomputes, t0, t1 (t1 < t0: did not run),
//              w StartReason, a the task and e the edge of it, g idle time
//              before it, y when its inputs were there
//   edges      between ranks and those named: e id, f from, t to, n bytes
//   transfers  e edge, t0, t1      epilogue   [rank, t0, t1]
//   idle       r, k BubbleKind, t0, t1, b next task, e edge, i ready task
//   critical   [PathPiece::Kind, task or edge, t0, t1]
//   bubbles    by rank, by BubbleKind
//   memory     by rank: limit, peak, and changes t, i item, d bytes
//   offloaded  tasks               measured   t0, t1 by task, finish
void AppendStepJson(const ReportStep& step,
                    const trace::TraceAnalysis& analysis, Duration axis,
                    formats::JsonWriter* json);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_REPORT_DATA_H_
