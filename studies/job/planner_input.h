// The planner of a job that a study reads.
#ifndef PIPELOOM_STUDIES_JOB_PLANNER_INPUT_H_
#define PIPELOOM_STUDIES_JOB_PLANNER_INPUT_H_

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/partition.h"
#include "planner/job/job_planner.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"
#include "studies/job/job_input.h"

namespace pipeloom::studies {

// Makes the planner of the job. `strategy`: empty for the job's; `operators`:
// instead of CostsOf(input), or null; `correct`: changes the cost model before
// anything is priced, or empty; `partition`: none for the strategy's own,
// whose choice `stop` ends (Cancelled).
absl::StatusOr<std::unique_ptr<planner::JobPlanner>> MakeJobPlanner(
    const JobInput& input, const std::string& strategy,
    std::unique_ptr<const emulator::OpCostModel> operators = nullptr,
    std::function<absl::Status(emulator::StageCostModel*)> correct = {},
    std::optional<Partition> partition = std::nullopt,
    std::stop_token stop = {});

// Prepares the job with the strategy's own partition. InvalidArgument: it
// breaks a rule of the job. Cancelled: a stop was requested.
absl::StatusOr<planner::PreparedJob> PrepareOwnPartition(
    const JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, const std::stop_token& stop = {});

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_JOB_PLANNER_INPUT_H_
