// The planner of a job that was read from the command line.
#ifndef PIPELOOM_CLI_INPUT_PLANNER_INPUT_H_
#define PIPELOOM_CLI_INPUT_PLANNER_INPUT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/input/job_input.h"
#include "emulator/ops/op_cost.h"
#include "planner/job/job_planner.h"

namespace pipeloom::cli {

// Makes the planner of the job with the strategy's own partition. `strategy`:
// empty for the job's; `learned`: a file of measured times, or empty;
// `operators`: instead of CostsOf(input), or null.
absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const JobInput& input, const std::string& strategy,
    const std::string& learned = "",
    std::unique_ptr<const emulator::OpCostModel> operators = nullptr);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLANNER_INPUT_H_
