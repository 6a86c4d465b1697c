#include "cli/input/learned_file.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "studies/job/planner_input.h"

namespace pipeloom::cli {

absl::StatusOr<emulator::CostLearner> ReadLearned(const std::string& path) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<emulator::CostLearner> learned =
      emulator::CostLearner::Parse(text);
  if (learned.ok()) return learned;
  return absl::Status(learned.status().code(),
                      absl::StrCat(path, ": ", learned.status().message()));
}

absl::Status ApplyLearned(const std::string& path,
                          emulator::StageCostModel* costs, double most) {
  if (path.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const emulator::CostLearner learned,
                            ReadLearned(path));
  SetLearned(learned, most, costs);
  return absl::OkStatus();
}

void SetLearned(const emulator::CostLearner& learned, double most,
                emulator::StageCostModel* costs) {
  std::vector<std::string> modules;
  for (const ModuleSpec& module : costs->job().model.modules) {
    modules.push_back(module.name);
  }
  costs->SetCorrections(learned.Factors(modules, most));
}

absl::Status CheckLearned(const std::string& path, double most,
                          const ModelSpec& model, const Context& context) {
  if (path.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const emulator::CostLearner learned,
                            ReadLearned(path));
  std::vector<std::string> clamped;
  std::vector<std::string> unknown;
  for (const ModuleSpec& module : model.modules) {
    if (learned.Tasks(module.name, Pass::kForward) == 0) {
      unknown.push_back(module.name);
    }
    for (const Pass pass :
         {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
      if (learned.Tasks(module.name, pass) == 0) continue;
      const double factor = learned.Factor(module.name, pass);
      if (factor == std::clamp(factor, 1 / most, most)) continue;
      clamped.push_back(absl::StrFormat("%s pass %c (%.3g)", module.name,
                                        PassLetter(pass), factor));
    }
  }
  if (std::ssize(unknown) == model.modules.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--learned %s: it has times of no module of %s (%s); they must be "
        "measured on a job of this model",
        path, model.name, absl::StrJoin(unknown, ", ")));
  }
  if (!unknown.empty()) {
    context.warn(absl::StrFormat(
        "note: --learned %s: no times of %s were measured; those that the "
        "profile gives are used",
        path, absl::StrJoin(unknown, ", ")));
  }
  if (clamped.empty()) return absl::OkStatus();
  context.warn(absl::StrFormat(
      "note: --learned %s: measured over priced time is outside [%g, %g] for "
      "%s; the nearer end is used, as such times were not measured on this "
      "job's GPUs",
      path, 1 / most, most, absl::StrJoin(clamped, ", ")));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const studies::JobInput& input, const std::string& strategy,
    const std::string& learned, double most, std::stop_token stop) {
  return studies::MakeJobPlanner(
      input, strategy, /*operators=*/nullptr,
      [&learned, most](emulator::StageCostModel* costs) {
        return ApplyLearned(learned, costs, most);
      },
      /*partition=*/std::nullopt, std::move(stop));
}

}  // namespace pipeloom::cli
