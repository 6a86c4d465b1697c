#include "cli/run/run_feed.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cli/console/study_context.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {
namespace {

using runtime::SharedPlan;

// A prepared job, whose steps are planned on demand.
struct StepPlanner {
  PlanSource source{};
  Context context{};
  studies::JobInput input{};
  std::unique_ptr<planner::JobPlanner> planner{};
  std::vector<partition::PackedStep> packed{};

  // Reads the job and prepares it.
  absl::Status Prepare(const std::vector<std::string>& args, int64_t steps) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
    PIPELOOM_ASSIGN_OR_RETURN(input, ReadPlannedJob(name, source, context));
    PIPELOOM_ASSIGN_OR_RETURN(
        packed, studies::PackSteps(input, steps, StudyContextOf(context)));
    PIPELOOM_ASSIGN_OR_RETURN(
        planner, MakePlanner(input, source, source.learned, context));
    return absl::OkStatus();
  }

  // Returns the plan of replica 0 with its first legal order, which is the same
  // in every process.
  absl::StatusOr<SharedPlan> OwnPlan(int64_t step) {
    studies::SearchSettings settings = SettingsOf(source, input);
    settings.deadline.reset();
    settings.evaluations = 1;
    settings.threads = 1;
    Progress progress(context, "planning", 1);
    PIPELOOM_ASSIGN_OR_RETURN(
        const studies::PlannedStep planned,
        studies::PlanReplicas(
            planner->prepared(), packed[static_cast<size_t>(step)], step,
            /*replicas=*/1, settings, context.stop, SetterOf(progress)));
    return std::make_shared<const ExecutionPlan>(planned.replicas.front().plan);
  }

  absl::StatusOr<SharedPlan> Plan(int64_t step) {
    Progress progress(context, "planning", input.replicas);
    PIPELOOM_ASSIGN_OR_RETURN(
        const studies::PlannedStep planned,
        studies::PlanReplicas(planner->prepared(),
                              packed[static_cast<size_t>(step)], step,
                              input.replicas, SettingsOf(source, input),
                              context.stop, SetterOf(progress)));
    return std::make_shared<const ExecutionPlan>(planned.slowest().plan);
  }
};

// Returns the passes by which plans of one step are compared. Weight gradients
// do not count, as only some plans split them off.
std::vector<std::tuple<Pass, int32_t, int32_t, int32_t, int32_t>> PassesOf(
    const ExecutionPlan& plan) {
  std::vector<std::tuple<Pass, int32_t, int32_t, int32_t, int32_t>> passes;
  for (const TaskId t : plan.graph.task_ids()) {
    const Task& task = plan.graph.task(t);
    if (task.pass == Pass::kWeightGrad) continue;
    passes.emplace_back(task.pass, task.rank.value(), task.stage.value(),
                        task.microbatch.value(), task.sub_microbatch);
  }
  std::sort(passes.begin(), passes.end());
  return passes;
}

// The plans of a service, which are requested a few steps ahead.
class FollowedPlans {
 public:
  FollowedPlans(std::unique_ptr<StepPlanner> planner,
                std::unique_ptr<PlanFollower> follower, FeedCounts* counts)
      : planner_(std::move(planner)),
        follower_(std::move(follower)),
        counts_(counts) {}

  absl::StatusOr<SharedPlan> Plan(int64_t step) {
    constexpr int64_t kAhead = 3;
    const auto steps = static_cast<int64_t>(planner_->packed.size());
    for (; submitted_ < std::min(steps, step + kAhead); ++submitted_) {
      follower_->Submit(submitted_,
                        planner_->packed[static_cast<size_t>(submitted_)]);
    }
    PIPELOOM_ASSIGN_OR_RETURN(const SharedPlan own, planner_->OwnPlan(step));
    if (const std::optional<std::string> bytes = follower_->Wait(step)) {
      absl::StatusOr<ExecutionPlan> plan =
          ParsePlanFile(*bytes, "the service's plan");
      if (plan.ok() && plan->step == step && plan->replica == 0 &&
          plan->graph.num_ranks() == own->graph.num_ranks() &&
          PassesOf(*plan) == PassesOf(*own)) {
        ++counts_->planned;
        return std::make_shared<const ExecutionPlan>(*std::move(plan));
      }
    }
    ++counts_->own;
    return own;
  }

 private:
  std::unique_ptr<StepPlanner> planner_;
  std::unique_ptr<PlanFollower> follower_;
  FeedCounts* counts_;
  int64_t submitted_ = 0;
};

}  // namespace

absl::StatusOr<runtime::PlanFeed> MakeServiceFeed(
    const PlanSource& source, const FollowOptions& service,
    const std::vector<std::string>& args, int64_t steps, int64_t repeat,
    const Context& context, FeedCounts* counts) {
  if (!source.plan_file.empty()) {
    return UsageError("--service plans a JOB: a plan is planned already");
  }
  if (source.job.assignment == "deferred") {
    return UsageError(
        "--assignment deferred: plans of --service defer nothing; give "
        "in-order or balanced, or leave out --service");
  }
  auto planner = std::make_unique<StepPlanner>();
  planner->source = source;
  planner->context = context;
  PIPELOOM_RETURN_IF_ERROR(planner->Prepare(args, steps));
  planner->context.show_progress = nullptr;
  JobSpec job = planner->input.job;
  const studies::SearchSettings settings =
      studies::Settle(source.search, job.search);
  job.search.schedule = source.strategy.value_or(job.search.schedule);
  job.search.seed = settings.seed;
  if (settings.deadline) job.search.deadline = *settings.deadline;
  job.search.evaluations = settings.evaluations.value_or(0);
  PIPELOOM_ASSIGN_OR_RETURN(
      std::unique_ptr<PlanFollower> follower,
      PlanFollower::Start(service, job, planner->planner->partition()));
  auto plans = std::make_shared<FollowedPlans>(std::move(planner),
                                               std::move(follower), counts);
  return runtime::PlanFeed(
      [plans, repeat,
       last = SharedPlan()](int64_t i) mutable -> absl::StatusOr<SharedPlan> {
        if (i % repeat == 0) {
          PIPELOOM_ASSIGN_OR_RETURN(last, plans->Plan(i / repeat));
        }
        return last;
      });
}

absl::StatusOr<runtime::PlanFeed> MakeRunFeed(
    const PlanSource& source, const std::vector<std::string>& args,
    int64_t steps, int64_t repeat, const Context& context) {
  if (steps == 1 || !source.plan_file.empty()) {
    if (steps > 1) {
      return UsageError(
          "--steps is for a JOB: a plan has one step; --repeat "
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
  PIPELOOM_RETURN_IF_ERROR(planner->Prepare(args, steps));
  PIPELOOM_ASSIGN_OR_RETURN(SharedPlan first, planner->Plan(0));
  // Later plans are made on another thread, while other progress is shown.
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
