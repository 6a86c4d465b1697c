// `pipeloom partition --layouts`, the search over parallel layouts, and the
// layout in a partition file that was made by it.
#ifndef PIPELOOM_CLI_STUDIES_PARTITION_LAYOUTS_H_
#define PIPELOOM_CLI_STUDIES_PARTITION_LAYOUTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/input/partition_input.h"
#include "planner/layout/layout_search.h"
#include "planner/strategy.h"

namespace pipeloom::cli {

// Returns a function that prices the job's operators for any layout, by the
// input's profiles.
planner::PriceLayout PricesOf(const studies::JobInput& input);

struct LayoutFlags {
  bool layouts = false;
  int64_t gpus = 0;  // 0: as many as the job has.
  // 0: the search chooses.
  int64_t tp = 0;
  int64_t cp = 0;
  int64_t ep = 0;
  int64_t pp = 0;
  int64_t dp = 0;
  bool by_module = false;
};
void AppendLayoutFlags(LayoutFlags* values, std::vector<Flag>* flags);

// Checks the flags. A UsageError: sizes are given without --layouts.
absl::Status CheckLayoutFlags(const LayoutFlags& flags);

// Searches layouts and shows progress. After a stop request, returns the
// results found so far; Cancelled: there are none.
absl::StatusOr<planner::LayoutSearchResult> RunLayoutSearch(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const LayoutFlags& flags, const planner::PartitionSearchOptions& search,
    const Context& context);

// Returns for example "tp 2 pp 4 dp 8", with cp and ep if they are not 1, and
// with the sizes of modules that have their own:
// "tp 8 pp 4 dp 1, vision_encoder tp 1".
std::string LayoutWords(const ParallelLayout& layout,
                        const std::vector<ModuleParallelism>& modules = {});

// Returns a table of the result's layouts, the fastest first, and the reasons
// why others were left out.
std::string LayoutReport(const planner::LayoutSearchResult& result);

// If --partition is a file that names a layout, gives the job this layout, its
// replicas and, unless an option gives them, its microbatches. Prints a note to
// stderr if it differs from the job's. InvalidArgument: the job cannot have the
// layout. REQUIRES: nothing was priced or packed yet.
absl::Status TakeLayoutOfFile(const PartitionFlags& partition,
                              const JobFlags& flags, const Context& context,
                              studies::JobInput* input);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_PARTITION_LAYOUTS_H_
