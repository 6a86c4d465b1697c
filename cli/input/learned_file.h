// Files of learned costs (emulator/calibration/cost_learner.h), and planners
// that use them.
#ifndef PIPELOOM_CLI_INPUT_LEARNED_FILE_H_
#define PIPELOOM_CLI_INPUT_LEARNED_FILE_H_

#include <memory>
#include <set>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "emulator/calibration/cost_learner.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/job_spec.h"
#include "planner/job/job_planner.h"
#include "studies/job/job_input.h"

namespace pipeloom::cli {

// A file of learned costs, and the names of the jobs whose runs taught them, a
// line `job "NAME"` for each at the end of the file; none in older files.
struct LearnedFile {
  emulator::CostLearner costs{};
  std::set<std::string> jobs{};
};

// Reads a file of learned costs. Errors name the file.
absl::StatusOr<LearnedFile> ReadLearned(const std::string& path);
absl::Status WriteLearned(const std::string& path, const LearnedFile& file);
// Reads the file and applies it to `costs`, each factor clamped to [1 / most,
// most]. Does nothing if `path` is empty.
absl::Status ApplyLearned(const std::string& path,
                          emulator::StageCostModel* costs,
                          double most = emulator::CostLearner::kMaxCorrection);
// Multiplies the times of `costs` by the learned factors, each clamped to
// [1 / most, most].
void SetLearned(const emulator::CostLearner& learned, double most,
                emulator::StageCostModel* costs);
// Warns of the measured factors of the file that ApplyLearned() clamps, of
// modules that it has no times of, and if it was measured on other jobs alone.
// InvalidArgument: it has times of none of the modules of the job's model. Does
// nothing if `path` is empty.
absl::Status CheckLearned(const std::string& path, double most,
                          const JobSpec& job, const Context& context);

// Makes the planner of the job with the strategy's own partition. `strategy`:
// empty for the job's; `learned`: a file of measured times, or empty; `most` as
// for ApplyLearned(); `stop` ends the strategy's choice.
absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const studies::JobInput& input, const std::string& strategy,
    const std::string& learned, double most, std::stop_token stop);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_LEARNED_FILE_H_
