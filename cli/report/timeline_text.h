// A step's timeline as text: one line a rank, one character a slice of time.
//
//   rank 0 ffffFFFFFF....BBBBbbbb+
//   rank 1 ....ffffFFFFFFBBBB.bbb+
//
// F, B, W: most of the slice is a forward, backward or weight gradient of the
// module that computes longest, in small letters of any other module. '.' is
// idle, '+' gradient reduction and optimizer step.
#ifndef PIPELOOM_CLI_REPORT_TIMELINE_TEXT_H_
#define PIPELOOM_CLI_REPORT_TIMELINE_TEXT_H_

#include <string>

#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

// Lines for `only` or, when it is none, all ranks; then a line of time marks
// and the legend. REQUIRES: columns >= 10. O(spans + ranks x columns).
std::string TimelineText(const StageGraph& graph, const StepTrace& trace,
                         int columns = 72, RankId only = RankId::None());

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_TIMELINE_TEXT_H_
