#include "cli/input/learned_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "studies/job/planner_input.h"

namespace pipeloom::cli {

absl::StatusOr<runtime::LearnedCosts> ReadLearned(const std::string& path) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<runtime::LearnedCosts> learned =
      runtime::LearnedCosts::Parse(text);
  if (learned.ok()) return learned;
  return absl::Status(learned.status().code(),
                      absl::StrCat(path, ": ", learned.status().message()));
}

absl::Status ApplyLearned(const std::string& path,
                          emulator::StageCostModel* costs) {
  if (path.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const runtime::LearnedCosts learned,
                            ReadLearned(path));
  SetLearned(learned, costs);
  return absl::OkStatus();
}

void SetLearned(const runtime::LearnedCosts& learned,
                emulator::StageCostModel* costs) {
  IdVector<ModuleId, emulator::PassFactors> factors;
  for (const ModuleSpec& module : costs->job().model.modules) {
    factors.push_back(
        {.forward = learned.Factor(module.name, Pass::kForward),
         .backward = learned.Factor(module.name, Pass::kBackward),
         .weight_grad = learned.Factor(module.name, Pass::kWeightGrad)});
  }
  costs->SetCorrections(std::move(factors));
}

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const studies::JobInput& input, const std::string& strategy,
    const std::string& learned) {
  return studies::MakeJobPlanner(input, strategy, /*operators=*/nullptr,
                                 [&learned](emulator::StageCostModel* costs) {
                                   return ApplyLearned(learned, costs);
                                 });
}

}  // namespace pipeloom::cli
