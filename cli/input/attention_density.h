// The option --attention-density: sparse attention whose density changes from
// step to step, in addition to the constant densities of the layers in a job
// file (`density` of model.proto).
//
// A step's density multiplies that of every layer. The partition is the job's,
// as layers do not move between steps; pricing, planning and emulation use the
// step's density, with one copy of the job and its prices for each density.
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
#include "studies/job/planned_step.h"

namespace pipeloom::cli {

Flag AttentionDensityFlag(std::vector<std::string>* values, bool by_step);

// Parses densities, indexed by step; the last holds for all later steps. A
// UsageError: a density is not in (0, 1].
absl::StatusOr<std::vector<double>> ParseDensities(
    const std::vector<std::string>& values);

// Returns the job with the attention density of every layer multiplied by
// `density`.
JobSpec WithAttentionDensity(const JobSpec& job, double density);

// A prepared job at the density of each step. Not thread-safe.
class DensityByStep {
 public:
  // `adjust` is called on each new cost model before its use. REQUIRES:
  // `prepared` and `input` outlive the object.
  DensityByStep(const planner::PreparedJob& prepared,
                const studies::JobInput& input, std::vector<double> densities,
                std::function<absl::Status(emulator::StageCostModel*)> adjust);

  // Returns the job prepared at a step's density, which lives as long as this
  // object; `prepared` itself for density 1.
  absl::StatusOr<const planner::PreparedJob*> Of(int64_t step);

 private:
  struct Sparse {
    std::unique_ptr<emulator::StageCostModel> costs{};
    planner::PreparedJob prepared{};
  };

  const planner::PreparedJob& prepared_;
  const studies::JobInput& input_;
  const std::vector<double> densities_;
  const std::function<absl::Status(emulator::StageCostModel*)> adjust_;
  std::map<double, Sparse> made_{};
};

// Plans all steps, each at its density, and shows the progress. Fails where
// studies::PlanReplicas fails; with `keeps_cut` a stop request gives the steps
// until then, if there is any.
absl::StatusOr<std::vector<studies::PlannedStep>> PlanSteps(
    const studies::JobInput& input,
    const std::vector<partition::PackedStep>& packed,
    const studies::SearchSettings& settings, const Context& context,
    DensityByStep* densities, bool keeps_cut = false);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_ATTENTION_DENSITY_H_
