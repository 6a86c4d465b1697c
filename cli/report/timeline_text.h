// A step's timeline as text: one line per rank, one character per slice of
// time.
//
//   rank 0 ffffFFFFFF....BBBBbbbb+
//   rank 1 ....ffffFFFFFFBBBB.bbb+
//
// F, B and W say that most of the slice is a forward, backward or weight
// gradient: capital letters for the module that computes longest, small letters
// for all others. '.' is idle, '+' gradient reduction and optimizer step.
#ifndef PIPELOOM_CLI_REPORT_TIMELINE_TEXT_H_
#define PIPELOOM_CLI_REPORT_TIMELINE_TEXT_H_

#include <string>

#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

// Returns lines for rank `only` or, if it is none, for all ranks; then a line
// of time marks and the legend. O(spans + ranks x columns). REQUIRES:
// columns >= 10.
std::string TimelineText(const StageGraph& graph, const StepTrace& trace,
                         int columns = 72, RankId only = RankId::None());

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_TIMELINE_TEXT_H_
