// The options of `pipeloom partition --layouts`, and the layout in a partition
// file that was made by it.
#ifndef PIPELOOM_CLI_INPUT_LAYOUT_FLAGS_H_
#define PIPELOOM_CLI_INPUT_LAYOUT_FLAGS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/input/partition_input.h"
#include "planner/layout/layout_search.h"

namespace pipeloom::cli {

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

// Returns the sizes that the flags fix.
planner::LayoutConstraints FixedBy(const LayoutFlags& flags);

// If --partition is a file that names a layout, gives the job this layout, its
// replicas and, unless an option gives them, its microbatches. Prints a note to
// stderr if it differs from the job's, and one if the option's microbatches
// make another global batch than the file's. InvalidArgument: the job cannot
// have the layout. REQUIRES: nothing was priced or packed yet.
absl::Status TakeLayoutOfFile(const PartitionFlags& partition,
                              const JobFlags& flags, const Context& context,
                              studies::JobInput* input);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_LAYOUT_FLAGS_H_
