#include "cli/input/learned_file.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "studies/job/planner_input.h"

namespace pipeloom::cli {

namespace {

constexpr absl::string_view kJob = "job \"";

}  // namespace

absl::StatusOr<LearnedFile> ReadLearned(const std::string& path) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LearnedFile file;
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (absl::string_view& line : lines) {
    std::string job;
    absl::string_view name = line;
    if (!absl::ConsumePrefix(&name, kJob) ||
        !absl::ConsumeSuffix(&name, "\"") || !absl::CUnescape(name, &job)) {
      continue;
    }
    file.jobs.insert(std::move(job));
    line = "";  // So that the lines of errors keep their numbers.
  }
  absl::StatusOr<emulator::CostLearner> learned =
      emulator::CostLearner::Parse(absl::StrJoin(lines, "\n"));
  if (!learned.ok()) {
    return absl::Status(learned.status().code(),
                        absl::StrCat(path, ": ", learned.status().message()));
  }
  file.costs = *std::move(learned);
  return file;
}

absl::Status WriteLearned(const std::string& path, const LearnedFile& file) {
  std::string text = file.costs.ToString();
  for (const std::string& job : file.jobs) {
    absl::StrAppend(&text, kJob, absl::CEscape(job), "\"\n");
  }
  return WriteFileAtomically(path, text);
}

absl::Status ApplyLearned(const std::string& path,
                          emulator::StageCostModel* costs, double most) {
  if (path.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const LearnedFile file, ReadLearned(path));
  SetLearned(file.costs, most, costs);
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
                          const JobSpec& job, const Context& context) {
  if (path.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const LearnedFile file, ReadLearned(path));
  const emulator::CostLearner& learned = file.costs;
  const ModelSpec& model = job.model;
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
  if (!file.jobs.empty() && !file.jobs.contains(job.name)) {
    context.warn(absl::StrFormat(
        "note: --learned %s: it was measured on %s, and this job is %s; its "
        "times are used, as modules have the same names",
        path, absl::StrJoin(file.jobs, ", "), job.name));
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
