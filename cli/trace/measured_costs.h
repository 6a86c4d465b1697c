// Planning with measured costs: --learned, a file of `run --learn`, or
// --costs-from, traces of a step of the job.
//
// Either way, the cost model's times are multiplied for each module and pass by
// the ratio of measured to priced time (runtime/learned_costs.h). The ratio is
// used for any layer, shape and partition of the module, not only for those in
// a trace.
#ifndef PIPELOOM_CLI_TRACE_MEASURED_COSTS_H_
#define PIPELOOM_CLI_TRACE_MEASURED_COSTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/input/partition_input.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "runtime/learned_costs.h"

namespace pipeloom::cli {

struct MeasuredFlags {
  std::string learned{};
  std::vector<std::string> traces{};  // Files and folders.
};
void AppendMeasuredFlags(MeasuredFlags* values, std::vector<Flag>* flags);

// Learns the ratios of measured to priced time of a step's tasks. `measured`
// are the tasks of replica 0 as ImportTrace returns them, hand-overs included.
// A task is matched by module, stage, microbatch, sub-microbatch and pass; if
// all are of a module "model", by stage, microbatch and pass. A backward that
// recomputes is priced with its whole forward, as a trace does not say which
// part is recomputed; if only operator groups are, its factor comes out too
// small. InvalidArgument names the first task that only one side has: the step
// was of another partition or batch.
absl::StatusOr<runtime::LearnedCosts> LearnFromTasks(
    const StageGraph& measured, const emulator::StageCostModel& priced,
    const Partition& partition, const Microbatches& microbatches);

// Corrects `costs` as the flags say. A trace is taken for the job's first step
// with the partition of --partition FILE or dip, else of `schedule`, else of
// the first other strategy that fits. Prints the result to stderr. REQUIRES:
// `costs` was not used yet.
absl::Status ApplyMeasured(const MeasuredFlags& flags, const JobInput& input,
                           const std::string& schedule,
                           const PartitionFlags& partition,
                           const SearchSettings& settings,
                           const Context& context,
                           emulator::StageCostModel* costs);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TRACE_MEASURED_COSTS_H_
