// The SVG drawings of the report. Colours are classes of report_style.h.
#ifndef PIPELOOM_CLI_REPORT_DRAWING_H_
#define PIPELOOM_CLI_REPORT_DRAWING_H_

#include <string>

#include "ir/stage_graph.h"
#include "ir/step_trace.h"

namespace pipeloom::cli {

// The fill patterns of weight gradients; once a page, before the drawings.
std::string PatternsSvg(int num_modules);

// One row a rank, a rectangle a task. Tasks narrower than a pixel are drawn
// together as one rectangle, so there are at most `width` a row; transfers are
// lines when there are few. The text gives module, stage, microbatch and times
// on hovering. The time axis ends at `axis` or, if that is later, with the
// step.
std::string TimelineSvg(const StageGraph& graph, const StepTrace& trace,
                        int width, Duration axis = kZero);

// What the colours of the timeline mean, as HTML.
std::string TimelineLegend(const StageGraph& graph);

// One rank's memory over the step, stacked by item, with its limit.
std::string MemorySvg(const StageGraph& graph, const StepTrace& trace,
                      RankId rank);
std::string MemoryLegend();

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_DRAWING_H_
