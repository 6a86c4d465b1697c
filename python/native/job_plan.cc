#include "python/native/job_plan.h"

#include <utility>

#include "base/status_macros.h"
#include "cli/console/study_context.h"
#include "cli/input/attention_density.h"
#include "cli/input/learned_file.h"
#include "cli/input/planning_flags.h"
#include "cli/input/robust_flags.h"
#include "planner/job/job_planner.h"

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
  flags.push_back({"learned", &learned, "FILE", "times that a run measured"});
  flags.push_back(cli::AttentionDensityFlag(&density_texts, true));
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> args,
                            cli::ParseFlags(flags, arguments));
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<double> densities,
                            cli::ParseDensities(density_texts));
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name,
                            cli::OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(const studies::JobInput input,
                            cli::ReadPlannedJob(name, planning, context));
  PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                            studies::PackSteps(input, planning.job.steps,
                                               cli::StudyContextOf(context)));
  studies::SearchSettings settings = cli::SettingsOf(planning, input);
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<planner::JobPlanner> planner,
      cli::MakePlanner(input, planning, learned, context));
  settings.robust = cli::DisturbancesOf(robust, settings.seed);
  cli::DensityByStep by_step(planner->prepared(), input, densities,
                             [&](emulator::StageCostModel* sparse) {
                               return cli::ApplyLearned(learned, sparse);
                             });
  JobPlan plan;
  plan.job = input.job.name;
  plan.strategy = std::string(planner->strategy().name());
  plan.memory_limit = input.job.MemoryLimit();
  PIPELOOM_ASSIGN_OR_RETURN(
      std::vector<studies::PlannedStep> steps,
      cli::PlanSteps(input, packed, settings, context, &by_step));
  plan.means = studies::MeansOf(steps);
  for (studies::PlannedStep& step : steps) {
    plan.steps.push_back(TakeStep(std::move(step)));
  }
  return plan;
}

}  // namespace pipeloom::python
