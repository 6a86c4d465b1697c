#include "cli/input/attention_density.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/progress.h"
#include "cli/console/study_context.h"

namespace pipeloom::cli {

Flag AttentionDensityFlag(std::vector<std::string>* values, bool by_step) {
  return {"attention-density", values, by_step ? "SHARE[,SHARE...]" : "SHARE",
          by_step ? "share of the query-key pairs that sparse attention works "
                    "on, times each layer's own density: of the first step, "
                    "the second, ...; the last holds for all that follow"
                  : "share of the query-key pairs that the step's sparse "
                    "attention works on, times each layer's own density"};
}

absl::StatusOr<std::vector<double>> ParseDensities(
    const std::vector<std::string>& values) {
  std::vector<double> densities;
  for (const std::string& text : values) {
    double density = 0;
    if (!absl::SimpleAtod(text, &density) || !(density > 0 && density <= 1)) {
      return UsageError(absl::StrFormat(
          "--attention-density %s: it must be in (0, 1], such as 0.25", text));
    }
    densities.push_back(density);
  }
  return densities;
}

JobSpec WithAttentionDensity(const JobSpec& job, double density) {
  JobSpec sparse = job;
  for (ModuleSpec& module : sparse.model.modules) {
    for (LayerSpec& layer : module.layers) layer.attention.density *= density;
  }
  return sparse;
}

DensityByStep::DensityByStep(
    const planner::PreparedJob& prepared, const studies::JobInput& input,
    std::vector<double> densities,
    std::function<absl::Status(emulator::StageCostModel*)> adjust)
    : prepared_(prepared),
      input_(input),
      densities_(std::move(densities)),
      adjust_(std::move(adjust)) {}

absl::StatusOr<const planner::PreparedJob*> DensityByStep::Of(int64_t step) {
  if (densities_.empty()) return &prepared_;
  const double density =
      densities_[std::min(static_cast<size_t>(step), densities_.size() - 1)];
  if (density == 1) return &prepared_;
  const auto [place, is_new] = made_.try_emplace(density);
  Sparse& sparse = place->second;
  if (is_new) {
    sparse.costs = std::make_unique<emulator::StageCostModel>(
        WithAttentionDensity(input_.job, density), studies::CostsOf(input_));
    PIPELOOM_RETURN_IF_ERROR(adjust_(sparse.costs.get()));
    sparse.prepared = prepared_;
    sparse.prepared.costs = sparse.costs.get();
  }
  return &sparse.prepared;
}

absl::StatusOr<std::vector<studies::PlannedStep>> PlanSteps(
    const studies::JobInput& input,
    const std::vector<partition::PackedStep>& packed,
    const studies::SearchSettings& settings, const Context& context,
    DensityByStep* densities, bool keeps_cut) {
  Progress progress(context, "planning",
                    static_cast<int64_t>(packed.size()) * input.replicas);
  std::vector<studies::PlannedStep> steps;
  for (size_t s = 0; s < packed.size(); ++s) {
    const auto step = static_cast<int64_t>(s);
    PIPELOOM_ASSIGN_OR_RETURN(const planner::PreparedJob* const prepared,
                              densities->Of(step));
    absl::StatusOr<studies::PlannedStep> planned = studies::PlanReplicas(
        *prepared, packed[s], step, input.replicas, settings, context.stop,
        SetterOf(progress), "", steps, keeps_cut);
    const bool ends = keeps_cut && context.stop.stop_requested();
    if (!planned.ok()) {
      if (ends && !steps.empty()) break;
      return planned.status();
    }
    steps.push_back(*std::move(planned));
    if (ends) break;
  }
  return steps;
}

}  // namespace pipeloom::cli
