// The options for planning with measured costs: --learned, a file of
// `run --learn`, or --costs-from, traces of a step of the job
// (trace/measured_costs.h) or times of single modules (trace/captured_times.h).
#ifndef PIPELOOM_CLI_INPUT_MEASURED_FLAGS_H_
#define PIPELOOM_CLI_INPUT_MEASURED_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/input/partition_input.h"
#include "emulator/stage/stage_cost.h"

namespace pipeloom::cli {

struct MeasuredFlags {
  std::string learned{};
  std::vector<std::string> traces{};  // Files and folders.
};
void AppendMeasuredFlags(MeasuredFlags* values, std::vector<Flag>* flags);

// Corrects `costs` as the flags say. A trace is taken for the step of the job
// that it names, else for its first, with the partition of --partition FILE or
// dip, else of `schedule`, else of the first other strategy that fits. Prints
// the result to stderr. REQUIRES: `costs` was not used yet.
absl::Status ApplyMeasured(const MeasuredFlags& flags,
                           const studies::JobInput& input,
                           const std::string& schedule,
                           const PartitionFlags& partition,
                           const studies::SearchSettings& settings,
                           const Context& context,
                           emulator::StageCostModel* costs);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_MEASURED_FLAGS_H_
