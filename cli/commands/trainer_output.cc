#include "cli/commands/trainer_output.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/input/plan_file.h"
#include "ir/plan/trainer.h"
#include "planner/strategies/registry.h"

namespace pipeloom::cli {
namespace {

// Returns the path with another extension, and `suffix` before it.
std::string NextTo(const std::string& path, absl::string_view suffix,
                   absl::string_view extension) {
  const size_t name = path.find_last_of('/') + 1;
  const size_t dot = path.find_last_of('.');
  return absl::StrCat(
      path.substr(0,
                  dot == std::string::npos || dot <= name ? path.size() : dot),
      suffix, ".", extension);
}

}  // namespace

Flag TrainerFlag(std::string* trainer, absl::string_view help) {
  Flag flag{"for", trainer, "TRAINER",
            absl::StrCat(help, "; default: pipeloom, everything")};
  for (const TrainerLimits& one : Trainers()) {
    flag.choices.emplace_back(one.name);
  }
  return flag;
}

absl::StatusOr<std::unique_ptr<planner::Strategy>> MakeStrategyFor(
    absl::string_view trainer, absl::string_view strategy) {
  const TrainerLimits* const limits = FindTrainer(trainer);
  if (trainer.empty() || limits == nullptr || limits->everything) {
    return planner::MakeStrategy(strategy);
  }
  if (strategy != "pipeloom") {
    return UsageError(absl::StrCat(
        "--for ", trainer, " with strategy ", strategy,
        ": only pipeloom plans within a trainer's limits; leave one out"));
  }
  return std::make_unique<planner::TrainerStrategy>(*limits);
}

planner::TrainerStrategy* AsTrainerStrategy(planner::Strategy* strategy) {
  return dynamic_cast<planner::TrainerStrategy*>(strategy);
}

PartitionFlags PartitionFlagsFor(const planner::TrainerStrategy* trainer,
                                 const PartitionFlags& flags) {
  PartitionFlags own = flags;
  if (trainer != nullptr && own.source.empty()) own.source = "rule";
  return own;
}

absl::StatusOr<planner::PreparedJob> PrepareForTrainer(
    const studies::JobInput& input,
    const std::vector<partition::PackedStep>& packed,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const studies::SearchSettings& settings, const Context& context,
    planner::TrainerStrategy* strategy) {
  if (settings.robust.has_value()) {
    return UsageError(absl::StrCat("--for ", strategy->trainer().name,
                                   " with --robust: use one of the two"));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::PreparedJob prepared,
      PrepareWithPartition(input, *strategy, costs,
                           PartitionFlagsFor(strategy, flags), settings,
                           context));
  PIPELOOM_RETURN_IF_ERROR(
      strategy->FixRecompute(prepared, packed, input.replicas, context.stop));
  return prepared;
}

absl::StatusOr<TrainerOutput> TrainerOutputOf(
    const planner::TrainerStrategy& strategy,
    const std::vector<studies::PlannedStep>& steps) {
  TrainerOutput output;
  const auto note = [&](const std::string& text) {
    if (std::find(output.notes.begin(), output.notes.end(), text) ==
        output.notes.end()) {
      output.notes.push_back(text);
    }
  };
  for (const studies::PlannedStep& step : steps) {
    output.schedules.emplace_back();
    for (const planner::PlanResult& result : step.replicas) {
      PIPELOOM_ASSIGN_OR_RETURN(
          adapters::TrainerFile file,
          adapters::ScheduleFileOf(strategy.trainer(), result.plan));
      const std::string of =
          absl::StrCat("step ", step.step, ", replica ", result.plan.replica);
      for (const std::string& text : file.notes) {
        note(steps.size() * step.replicas.size() > 1
                 ? absl::StrCat(of, ": ", text)
                 : text);
      }
      output.schedules.back().push_back(std::move(file));
      adapters::TrainerFile& first = output.schedules[0][0];
      const adapters::TrainerFile& last = output.schedules.back().back();
      first.rows_differ |= last.rows_differ;  // The launch is for all plans.
      if (last.num_microbatches != first.num_microbatches ||
          last.group != first.group) {
        note(absl::StrCat(
            of, " has ", last.num_microbatches, " microbatches in groups of ",
            last.group, "; the launch arguments are for ",
            first.num_microbatches, " in groups of ", first.group));
      }
    }
  }
  return output;
}

absl::StatusOr<std::string> LaunchArgumentsOf(
    const planner::TrainerStrategy& strategy, const planner::PreparedJob& job,
    const TrainerOutput& output, absl::string_view file) {
  return adapters::LaunchArguments(
      strategy.trainer(), job.costs->job(), job.partition,
      strategy.recompute().value_or(RecomputeSetting{}), output.schedules[0][0],
      file);
}

absl::string_view LaunchExtension(const TrainerLimits& trainer) {
  return trainer.name == "torchtitan" ? "toml" : "txt";
}

std::string FirstSchedulePath(const TrainerOutput& output,
                              const std::vector<studies::PlannedStep>& steps,
                              const std::string& out) {
  if (out.empty()) return "";
  const std::string plan = PlanPath(out, steps[0].step, steps.size() > 1,
                                    steps[0].replicas[0].plan.replica);
  const adapters::TrainerFile& first = output.schedules[0][0];
  return first.extension.empty() ? plan : NextTo(plan, "", first.extension);
}

absl::StatusOr<std::vector<std::string>> WriteTrainerOutput(
    const TrainerOutput& output, const std::string& arguments,
    const TrainerLimits& trainer,
    const std::vector<studies::PlannedStep>& steps, const std::string& out) {
  std::vector<std::string> written;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t r = 0; r < steps[s].replicas.size(); ++r) {
      const adapters::TrainerFile& file = output.schedules[s][r];
      if (file.extension.empty()) continue;
      const std::string plan = PlanPath(out, steps[s].step, steps.size() > 1,
                                        steps[s].replicas[r].plan.replica);
      const std::string path = NextTo(plan, "", file.extension);
      if (path == plan) {
        return UsageError(
            absl::StrCat("--out ", out,
                         ": that is the name of the trainer's file; plans "
                         "end in .pb or .txt"));
      }
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(path, file.text));
      written.push_back(path);
    }
  }
  const std::string launch = NextTo(out, "-launch", LaunchExtension(trainer));
  PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(launch, arguments));
  written.push_back(launch);
  return written;
}

}  // namespace pipeloom::cli
