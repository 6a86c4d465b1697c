// Layouts in words and as a table.
#ifndef PIPELOOM_CLI_REPORT_LAYOUT_REPORT_H_
#define PIPELOOM_CLI_REPORT_LAYOUT_REPORT_H_

#include <string>
#include <vector>

#include "formats/text/json_writer.h"
#include "ir/job/job_spec.h"
#include "planner/layout/layout_search.h"

namespace pipeloom::cli {

// Returns for example "tp 2 pp 4 dp 8", with cp and ep if they are not 1, and
// with the sizes of modules that have their own:
// "tp 8 pp 4 dp 1, vision_encoder tp 1".
std::string LayoutWords(const ParallelLayout& layout,
                        const std::vector<ModuleParallelism>& modules = {});

// Writes the layouts as the member "layouts" of an object that is open.
void WriteLayouts(const std::vector<planner::LayoutOutcome>& layouts,
                  formats::JsonWriter* json);

// Returns a table of the result's layouts, the fastest first, and the reasons
// why others were left out.
std::string LayoutReport(const planner::LayoutSearchResult& result);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_LAYOUT_REPORT_H_
