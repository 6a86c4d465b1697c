// Learning of measured costs from a trace of a step.
//
// The cost model's times are multiplied for each module and pass by
// the ratio of measured to priced time (emulator/calibration/cost_learner.h).
// The ratio is used for any layer, shape and partition of the module, not only
// for those in a trace.
#ifndef PIPELOOM_TRACE_MEASURED_COSTS_H_
#define PIPELOOM_TRACE_MEASURED_COSTS_H_

#include "absl/status/statusor.h"
#include "emulator/calibration/cost_learner.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::trace {

// Learns the ratios of measured to priced time of a step's tasks. `measured`
// are the tasks of replica 0 as ImportTrace returns them, hand-overs included.
// A task is matched by module, stage, microbatch, sub-microbatch and pass; if
// all are of a module "model", by stage, microbatch and pass. A backward that
// recomputes is priced with its whole forward, as a trace does not say which
// part is recomputed; if only operator groups are, its factor comes out too
// small. InvalidArgument names the first task that only one side has: the step
// was of another partition or batch.
absl::StatusOr<emulator::CostLearner> LearnFromTasks(
    const StageGraph& measured, const emulator::StageCostModel& priced,
    const Partition& partition, const Microbatches& microbatches);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_MEASURED_COSTS_H_
