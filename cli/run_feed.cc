#include "cli/run_feed.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "cli/job_input.h"
#include "cli/learned_file.h"
#include "cli/plan_file.h"
#include "cli/planned_step.h"
#include "planner/strategy.h"

namespace pipeloom::cli {
namespace {

using runtime::SharedPlan;

// A job made ready; plans its steps on demand.
struct StepPlanner {
  PlanSource source{};
  Context context{};
  JobInput input{};
  std::unique_ptr<planner::Strategy> strategy{};
  std::unique_ptr<emulator::StageCostModel> costs{};
  planner::PreparedJob prepared{};
  std::vector<partition::PackedStep> packed{};

  absl::StatusOr<SharedPlan> Plan(int64_t step) {
    Progress progress(context, "planning", input.replicas);
    PIPELOOM_ASSIGN_OR_RETURN(
        const PlannedStep planned,
        PlanReplicas(prepared, packed[static_cast<size_t>(step)], step,
                     input.replicas, Settle(source.search, input.job.search),
                     context, progress));
    return std::make_shared<const ExecutionPlan>(planned.slowest().plan);
  }
};

}  // namespace

absl::StatusOr<runtime::PlanFeed> MakeRunFeed(
    const PlanSource& source, const std::vector<std::string>& args,
    int64_t steps, int64_t repeat, const Context& context) {
  if (steps == 1 || !source.plan_file.empty()) {
    if (steps > 1) {
      return UsageError(
          "--steps is for a JOB: --plan has one step; --repeat "
          "executes it several times");
    }
    PIPELOOM_ASSIGN_OR_RETURN(SourcedPlan sourced,
                              GetPlan(source, args, context));
    const auto plan =
        std::make_shared<const ExecutionPlan>(std::move(sourced.plan));
    return runtime::PlanFeed(
        [plan](int64_t) -> absl::StatusOr<SharedPlan> { return plan; });
  }
  auto planner = std::make_shared<StepPlanner>();
  planner->source = source;
  planner->context = context;
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(planner->input,
                            ReadJobInput(name, source.job, context));
  const JobInput& input = planner->input;
  PIPELOOM_ASSIGN_OR_RETURN(planner->strategy,
                            planner::MakeStrategy(source.schedule.value_or(
                                input.job.search.schedule)));
  PIPELOOM_ASSIGN_OR_RETURN(planner->packed, PackSteps(input, steps, context));
  planner->costs =
      std::make_unique<emulator::StageCostModel>(input.job, CostsOf(input));
  PIPELOOM_RETURN_IF_ERROR(ApplyLearned(source.learned, planner->costs.get()));
  PIPELOOM_ASSIGN_OR_RETURN(
      planner->prepared,
      planner::PrepareJob(*planner->strategy, *planner->costs,
                          SampleOf(input.batch)));
  PIPELOOM_ASSIGN_OR_RETURN(SharedPlan first, planner->Plan(0));
  // From now on, on a thread of its own, beside other progress.
  planner->context.show_progress = nullptr;
  return runtime::PlanFeed(
      [planner, repeat,
       last = first](int64_t i) mutable -> absl::StatusOr<SharedPlan> {
        if (i > 0 && i % repeat == 0) {
          PIPELOOM_ASSIGN_OR_RETURN(last, planner->Plan(i / repeat));
        }
        return last;
      });
}

}  // namespace pipeloom::cli
