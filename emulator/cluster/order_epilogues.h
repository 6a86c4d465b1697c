// The epilogues that the order of an emulated plan leaves.
#ifndef PIPELOOM_EMULATOR_CLUSTER_ORDER_EPILOGUES_H_
#define PIPELOOM_EMULATOR_CLUSTER_ORDER_EPILOGUES_H_

#include "absl/status/statusor.h"
#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/stage/step_update.h"
#include "emulator/step/emulate_options.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::emulator {

// Returns each rank's epilogue after the passes of `trace`, the emulation of a
// plan of `graph`. At least 1 ns where one is expected, and 0 elsewhere, so
// that plans keep their instructions. O(spans).
IdVector<RankId, Duration> EpiloguesInOrder(const StepUpdate& update,
                                            const StageGraph& graph,
                                            const StepTrace& trace);

// Returns the graph with the epilogues that no order is shorter than, for lower
// bounds.
StageGraph WithLeastEpilogues(const StageGraph& graph,
                              const StepUpdate& update);

// Emulates a plan as EmulateStep does and gives its ranks these epilogues, and
// the plan the step time. The result is what EmulateStep returns for the plan
// then. Errors as there.
absl::StatusOr<StepTrace> EmulateInOrder(const StepUpdate& update,
                                         const EmulateOptions& options,
                                         ExecutionPlan* plan);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CLUSTER_ORDER_EPILOGUES_H_
