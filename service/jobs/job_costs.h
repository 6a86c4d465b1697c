// Costs that a job learned from measured steps, as the service plans with them,
// answers with them and stores them.
#ifndef PIPELOOM_SERVICE_JOBS_JOB_COSTS_H_
#define PIPELOOM_SERVICE_JOBS_JOB_COSTS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/calibration/cost_learner.h"
#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "ir/job/job_spec.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "pipeloom/v1/service_state.pb.h"

namespace pipeloom::service {

// Returns InvalidArgument, which names the field, if the trace cannot be one of
// the plan with this graph: another number of ranks, a task that it does not
// have, on another rank or twice, no task that takes time. Other spans count
// for nothing. O(spans + tasks).
absl::Status CheckReport(const StepTrace& trace, const StageGraph& graph);

// Returns the factors by which the prices of a job's modules are multiplied, at
// most CostLearner::kMaxCorrection and at least its inverse.
IdVector<ModuleId, emulator::PassFactors> FactorsOf(
    const emulator::CostLearner& learned, const ModelSpec& model);

// Appends the factors, FactorsOf(), of each module and pass that was measured.
void AppendCorrections(const emulator::CostLearner& learned,
                       const ModelSpec& model,
                       v1::ReportTraceResponse* response);

// Restores what a job had learned. Of a job that was stored before the learner
// was, the factors hold until something is measured. Errors are those of
// CostLearner.
absl::StatusOr<emulator::CostLearner> LearnedOf(const v1::StoredJob& job,
                                                const ModelSpec& model);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_JOB_COSTS_H_
