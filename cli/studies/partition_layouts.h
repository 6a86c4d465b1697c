// `pipeloom partition --layouts`: the search over parallel layouts, and what a
// partition file says of the layout that it was searched for.
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

// Operator costs of the job with any layout, by the input's profiles.
planner::PriceLayout PricesOf(const JobInput& input);

struct LayoutFlags {
  bool layouts = false;
  int64_t gpus = 0;  // 0: as many as the job has; below, 0: free.
  int64_t tp = 0;
  int64_t cp = 0;
  int64_t ep = 0;
  int64_t pp = 0;
  int64_t dp = 0;
  bool by_module = false;
};
void AppendLayoutFlags(LayoutFlags* values, std::vector<Flag>* flags);

// UsageError: sizes are given without --layouts.
absl::Status CheckLayoutFlags(const LayoutFlags& flags);

// Shows progress. After a stop request what was found until then; Cancelled:
// nothing was.
absl::StatusOr<planner::LayoutSearchResult> RunLayoutSearch(
    const JobInput& input, const planner::Strategy& strategy,
    const LayoutFlags& flags, const planner::PartitionSearchOptions& search,
    const Context& context);

// "tp 2 pp 4 dp 8", with cp and ep where they are not 1, and the sizes of
// modules that have their own: "tp 8 pp 4 dp 1, vision_encoder tp 1".
std::string LayoutWords(const ParallelLayout& layout,
                        const std::vector<ModuleParallelism>& modules = {});

// The layouts of the result, the fastest first, and what became of the others.
std::string LayoutReport(const planner::LayoutSearchResult& result);

// Where --partition is a file that names a layout, the job takes it over, with
// its microbatches unless they were given as an option, and its replicas. Notes
// on stderr where it is another than the job's. To be called before anything is
// priced or packed. InvalidArgument: the job cannot have the layout.
absl::Status TakeLayoutOfFile(const PartitionFlags& partition,
                              const JobFlags& flags, const Context& context,
                              JobInput* input);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_PARTITION_LAYOUTS_H_
