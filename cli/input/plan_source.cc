#include "cli/input/plan_source.h"

#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/console/file_kind.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/attention_density.h"
#include "cli/input/learned_file.h"
#include "cli/input/plan_file.h"
#include "emulator/cost/profile_cost.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {

void AppendPlanSourceFlags(PlanSource* values, std::vector<Flag>* flags) {
  flags->push_back(
      {"plan", &values->plan_file, "FILE", "the same as the argument PLAN"});
  AppendPlanningFlags(values, false, flags);
  flags->push_back({"learned", &values->learned, "FILE",
                    "plan JOB with the times that `pipeloom run --learn` "
                    "measured"});
}

absl::StatusOr<bool> IsPlanFile(const std::string& argument,
                                const JobFlags& job) {
  if (!job.batch.empty()) return false;
  const absl::StatusOr<std::string> content = ReadFile(argument);
  if (content.ok()) {
    if (GuessFileKind(*content) != FileKind::kJob) return true;
    return UsageError(absl::StrCat("--batch is missing: ", argument,
                                   " is a job, which is planned for a batch"));
  }
  // Only rank 0 of an MPI run reads the plan; others need not have the file.
  const bool is_name = argument.find_first_of("/.") == std::string::npos;
  if (!is_name || !absl::IsNotFound(content.status())) return true;
  return UsageError(absl::StrCat(
      "there is no plan file ", argument,
      "; if it is a JOB, --batch is missing: a file or the name of a batch"));
}

absl::Status SettlePlanFile(PlanSource* source, std::vector<std::string>* args,
                            absl::Span<const absl::string_view> used) {
  if (source->plan_file.empty() == args->empty()) {
    return UsageError("give either PLAN or JOB --batch FILE");
  }
  if (source->plan_file.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name,
                              OneArgument(*args, "PLAN or JOB"));
    PIPELOOM_ASSIGN_OR_RETURN(const bool is_plan,
                              IsPlanFile(name, source->job));
    if (!is_plan) return absl::OkStatus();
    source->plan_file = name;
    args->clear();
  }
  std::string given = PlanningFlagsGiven(*source, used);
  const auto add = [&](absl::string_view name, bool is_given) {
    if (!is_given || absl::c_linear_search(used, name)) return;
    absl::StrAppend(&given, given.empty() ? "--" : ", --", name);
  };
  add("learned", !source->learned.empty());
  add("attention-density", !source->attention_density.empty());
  if (given.empty()) return absl::OkStatus();
  return UsageError(absl::StrCat("a plan takes no ", given, ": ",
                                 source->plan_file,
                                 " is planned already; give JOB --batch FILE"));
}

absl::StatusOr<SourcedPlan> GetPlan(const PlanSource& source,
                                    const std::vector<std::string>& args,
                                    const Context& context) {
  SourcedPlan sourced;
  if (!source.plan_file.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(sourced.plan, ReadPlan(source.plan_file));
    return sourced;
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<double> densities,
                            ParseDensities(source.attention_density));
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(const studies::JobInput input,
                            ReadPlannedJob(name, source, context));
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto packed, studies::PackSteps(input, 1, StudyContextOf(context)));
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto planner, MakePlanner(input, source, source.learned, context));
  const planner::PreparedJob& prepared = planner->prepared();
  DensityByStep by_step(prepared, input, densities,
                        [&](emulator::StageCostModel* sparse) {
                          return ApplyLearned(source.learned, sparse);
                        });
  PIPELOOM_ASSIGN_OR_RETURN(const planner::PreparedJob* const now,
                            by_step.Of(0));
  Progress progress(context, "planning", input.replicas);
  PIPELOOM_ASSIGN_OR_RETURN(
      studies::PlannedStep step,
      studies::PlanReplicas(*now, packed[0], 0, input.replicas,
                            SettingsOf(source, input), context.stop,
                            SetterOf(progress)));
  for (const std::string& note : studies::MeetingNotes(*now->costs, step)) {
    context.warn(absl::StrCat("note: ", note));
  }
  sourced.together = step.together;
  sourced.plan = step.slowest().plan;
  sourced.cache = now->costs->cache();
  sourced.memory_limit = MemoryLimitText(input.job);
  for (planner::PlanResult& replica : step.replicas) {
    sourced.replicas.push_back(std::move(replica.plan));
  }
  sourced.updates = now->costs->SlowestUpdates(prepared.partition);
  sourced.setup = input.job.setup;
  sourced.gpus_per_rank = input.job.parallel.gpus_per_rank();
  sourced.jitter = input.job.cluster.jitter;
  sourced.missing_lookups =
      emulator::MissingLookups(input.job, *studies::CostsOf(input));
  return sourced;
}

}  // namespace pipeloom::cli
