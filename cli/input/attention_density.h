// --attention-density: sparse attention whose sparsity changes from step to
// step, beside what the layers of a job file always have (`density` of
// model.proto).
//
// A step's density multiplies every layer's. The partition is the job's, as
// layers do not move between steps; what a step is priced, planned and emulated
// with is its own. Copies of the job and of its prices, one for each density.
#ifndef PIPELOOM_CLI_INPUT_ATTENTION_DENSITY_H_
#define PIPELOOM_CLI_INPUT_ATTENTION_DENSITY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/job_spec.h"
#include "planner/step/plan_step.h"

namespace pipeloom::cli {

Flag AttentionDensityFlag(std::vector<std::string>* values, bool by_step);

// By step; the last holds for all that follow. A UsageError unless each is in
// (0, 1].
absl::StatusOr<std::vector<double>> ParseDensities(
    const std::vector<std::string>& values);

// The job with every layer's attention at `density` of what it is.
JobSpec WithAttentionDensity(const JobSpec& job, double density);

// A prepared job at the density of each step. One thread.
class DensityByStep {
 public:
  // `adjust` is called on each new model of costs before its use. REQUIRES:
  // `prepared` and `input` outlive it.
  DensityByStep(const planner::PreparedJob& prepared, const JobInput& input,
                std::vector<double> densities,
                std::function<absl::Status(emulator::StageCostModel*)> adjust);

  // Lives as long as this. `prepared` itself where nothing is sparser.
  absl::StatusOr<const planner::PreparedJob*> Of(int64_t step);

 private:
  struct Sparse {
    std::unique_ptr<emulator::StageCostModel> costs{};
    planner::PreparedJob prepared{};
  };

  const planner::PreparedJob& prepared_;
  const JobInput& input_;
  const std::vector<double> densities_;
  const std::function<absl::Status(emulator::StageCostModel*)> adjust_;
  std::map<double, Sparse> made_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_ATTENTION_DENSITY_H_
