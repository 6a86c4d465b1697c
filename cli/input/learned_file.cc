#include "cli/input/learned_file.h"

#include <vector>

#include "absl/strings/str_cat.h"
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
                          emulator::StageCostModel* costs) {
  if (path.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const emulator::CostLearner learned,
                            ReadLearned(path));
  SetLearned(learned, costs);
  return absl::OkStatus();
}

void SetLearned(const emulator::CostLearner& learned,
                emulator::StageCostModel* costs) {
  std::vector<std::string> modules;
  for (const ModuleSpec& module : costs->job().model.modules) {
    modules.push_back(module.name);
  }
  costs->SetCorrections(learned.Factors(modules));
}

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const studies::JobInput& input, const std::string& strategy,
    const std::string& learned, std::stop_token stop) {
  return studies::MakeJobPlanner(
      input, strategy, /*operators=*/nullptr,
      [&learned](emulator::StageCostModel* costs) {
        return ApplyLearned(learned, costs);
      },
      /*partition=*/std::nullopt, std::move(stop));
}

}  // namespace pipeloom::cli
