#include "python/native/job_plan.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cli/commands/slow_flags.h"
#include "cli/commands/trainer_output.h"
#include "cli/console/study_context.h"
#include "cli/input/attention_density.h"
#include "cli/input/learned_file.h"
#include "cli/input/planning_flags.h"
#include "cli/input/robust_flags.h"
#include "planner/job/job_planner.h"
#include "planner/trainer/trainer_strategy.h"

namespace pipeloom::python {
namespace {

// Takes the plans out of `step` and keeps its figures.
PlannedStep TakeStep(studies::PlannedStep step) {
  PlannedStep taken;
  taken.step = step.step;
  taken.num_samples = step.num_samples;
  taken.slowest = static_cast<size_t>(&step.slowest() - step.replicas.data());
  taken.step_time = step.step_time();
  taken.lower_bound = step.lower_bound();
  taken.bound_source = step.bound_source();
  taken.gap_ratio = step.gap_ratio();
  taken.any_partition_gap = step.any_partition_gap();
  taken.bubble_ratio = step.bubble_ratio();
  taken.epilogue_ratio = step.epilogue_ratio();
  taken.mfu = step.mfu();
  taken.peak_bytes = step.peak_bytes();
  taken.search_time = step.search_time;
  taken.evaluations = step.evaluations();
  taken.robust = step.slowest().robust;
  for (planner::PlanResult& replica : step.replicas) {
    auto plan = std::make_shared<StepPlan>();
    plan->result = std::move(replica);
    plan->planned = true;
    taken.replicas.push_back(std::move(plan));
  }
  return taken;
}

// Stands for the name of plans without its extension; no text has it.
constexpr absl::string_view kPlanName = "\x1f";

absl::StatusOr<TrainerFiles> TrainerFilesOf(
    const planner::TrainerStrategy& strategy, const planner::PreparedJob& job,
    const std::vector<studies::PlannedStep>& steps,
    const cli::Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const cli::TrainerOutput output,
                            cli::TrainerOutputOf(strategy, steps));
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::string launch,
      cli::LaunchArgumentsOf(strategy, job, output, steps,
                             absl::StrCat(kPlanName, ".pb")));
  TrainerFiles files;
  files.trainer = std::string(strategy.trainer().name);
  files.launch_parts = absl::StrSplit(launch, kPlanName);
  files.launch_extension =
      std::string(cli::LaunchExtension(strategy.trainer()));
  for (const auto& step : output.schedules) {
    files.schedules.emplace_back();
    for (const adapters::TrainerFile& file : step) {
      files.schedules.back().push_back({file.extension, file.text});
    }
  }
  for (const std::string& note : output.notes) {
    context.warn(absl::StrCat("note: ", note));
  }
  return files;
}

// A job that is ready to plan, and what that needs: the planner, or, for a
// trainer, the strategy and the costs.
struct ReadyJob {
  std::unique_ptr<planner::JobPlanner> planner{};
  std::unique_ptr<planner::Strategy> strategy{};
  std::unique_ptr<emulator::StageCostModel> costs{};
  planner::TrainerStrategy* limited = nullptr;  // Is `strategy`, or null.
  planner::PreparedJob prepared{};
};

absl::StatusOr<ReadyJob> MakeReady(
    const studies::JobInput& input, const cli::PlanningFlags& planning,
    const std::string& trainer, const std::string& learned,
    const std::vector<partition::PackedStep>& packed,
    const studies::SearchSettings& settings, const cli::Context& context) {
  ReadyJob ready;
  PIPELOOM_ASSIGN_OR_RETURN(
      ready.strategy,
      cli::MakeStrategyFor(
          trainer, planning.strategy.value_or(input.job.search.schedule)));
  ready.limited = cli::AsTrainerStrategy(ready.strategy.get());
  if (ready.limited == nullptr) {
    PIPELOOM_ASSIGN_OR_RETURN(
        ready.planner, cli::MakePlanner(input, planning, learned, context));
    ready.prepared = ready.planner->prepared();
    return ready;
  }
  ready.costs = std::make_unique<emulator::StageCostModel>(
      input.job, studies::CostsOf(input));
  PIPELOOM_RETURN_IF_ERROR(cli::ApplyLearned(learned, ready.costs.get()));
  PIPELOOM_RETURN_IF_ERROR(cli::CheckLearned(
      learned, emulator::CostLearner::kMaxCorrection, input.job, context));
  PIPELOOM_ASSIGN_OR_RETURN(
      ready.prepared,
      cli::PrepareForTrainer(input, packed, *ready.costs, planning.partition,
                             settings, context, ready.limited));
  return ready;
}

}  // namespace

absl::StatusOr<JobPlan> PlanJob(const std::vector<std::string>& arguments,
                                const cli::Context& context) {
  cli::PlanningFlags planning;
  cli::RobustFlags robust;
  std::string learned;
  std::vector<std::string> density_texts;
  std::vector<cli::Flag> flags;
  cli::AppendPlanningFlags(&planning, /*with_steps=*/true, &flags);
  cli::AppendRobustFlags(&robust, &flags);
  cli::SlowFlags slow;
  cli::AppendSlowFlags(&slow, &flags);
  std::string trainer;
  flags.push_back(cli::TrainerFlag(&trainer, "the trainer of the plans"));
  flags.push_back({"learned", &learned, "FILE", "times that a run measured"});
  flags.push_back(cli::AttentionDensityFlag(&density_texts, true));
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> args,
                            cli::ParseFlags(flags, arguments));
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<double> densities,
                            cli::ParseDensities(density_texts));
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name,
                            cli::OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                            cli::ReadPlannedJob(name, planning, context));
  JobSpec slow_job = input.job;
  PIPELOOM_RETURN_IF_ERROR(cli::ApplySlow(slow, &slow_job));
  PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                            studies::PackSteps(input, planning.job.steps,
                                               cli::StudyContextOf(context)));
  studies::SearchSettings settings = cli::SettingsOf(planning, input);
  settings.robust = cli::DisturbancesOf(robust, settings.seed);
  PIPELOOM_ASSIGN_OR_RETURN(
      ReadyJob ready,
      MakeReady(input, planning, trainer, learned, packed, settings, context));
  std::unique_ptr<emulator::StageCostModel> slow_costs;
  if (slow.given()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        slow_costs, cli::SlowCosts(std::move(slow_job), learned, &input));
    ready.prepared.costs = slow_costs.get();
  }
  cli::DensityByStep by_step(ready.prepared, input, densities,
                             [&](emulator::StageCostModel* sparse) {
                               return cli::ApplyLearned(learned, sparse);
                             });
  JobPlan plan;
  plan.job = input.job.name;
  plan.strategy = std::string(ready.prepared.strategy->name());
  plan.memory_limit = input.job.MemoryLimit();
  PIPELOOM_ASSIGN_OR_RETURN(
      std::vector<studies::PlannedStep> steps,
      cli::PlanSteps(input, packed, settings, context, &by_step));
  plan.means = studies::MeansOf(steps);
  if (ready.limited != nullptr) {
    PIPELOOM_ASSIGN_OR_RETURN(
        plan.trainer,
        TrainerFilesOf(*ready.limited, ready.prepared, steps, context));
  }
  for (studies::PlannedStep& step : steps) {
    plan.steps.push_back(TakeStep(std::move(step)));
  }
  return plan;
}

}  // namespace pipeloom::python
