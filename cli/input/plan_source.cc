#include "cli/input/plan_source.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/attention_density.h"
#include "cli/input/learned_file.h"
#include "cli/input/plan_file.h"
#include "emulator/cost/profile_cost.h"
#include "formats/job/spec_loader.h"
#include "planner/strategies/registry.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {

void AppendPlanSourceFlags(PlanSource* values, std::vector<Flag>* flags) {
  flags->push_back({"plan", &values->plan_file, "FILE",
                    "a plan that `pipeloom plan --out` wrote, instead of JOB"});
  AppendJobFlags(&values->job, false, flags);
  flags->push_back(
      {"schedule",
       &values->schedule,
       "NAME",
       "the strategy, instead of the job's",
       {planner::StrategyNames().begin(), planner::StrategyNames().end()}});
  AppendSearchFlags(&values->search, flags);
  flags->push_back({"learned", &values->learned, "FILE",
                    "plan JOB with the times that `pipeloom run --learn` "
                    "measured"});
}

absl::StatusOr<SourcedPlan> GetPlan(const PlanSource& source,
                                    const std::vector<std::string>& args,
                                    const Context& context) {
  if (source.plan_file.empty() == args.empty()) {
    return UsageError("give either --plan FILE or JOB --batch FILE");
  }
  SourcedPlan sourced;
  if (!source.plan_file.empty()) {
    if (!source.job.batch.empty()) {
      return UsageError("--plan takes no --batch: the plan has its own");
    }
    if (!source.attention_density.empty()) {
      return UsageError(
          "--plan takes no --attention-density: the plan has its times");
    }
    PIPELOOM_ASSIGN_OR_RETURN(sourced.plan, ReadPlan(source.plan_file));
    return sourced;
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<double> densities,
                            ParseDensities(source.attention_density));
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(const studies::JobInput input,
                            ReadJobInput(name, source.job, context));
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto packed, studies::PackSteps(input, 1, StudyContextOf(context)));
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto planner,
      PlannerOf(input, source.schedule.value_or(""), source.learned));
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
                            studies::Settle(source.search, input.job.search),
                            context.stop, SetterOf(progress)));
  sourced.plan = step.slowest().plan;
  sourced.cache = now->costs->cache();
  sourced.memory_limit = MemoryLimitText(input.job);
  for (planner::PlanResult& replica : step.replicas) {
    sourced.replicas.push_back(std::move(replica.plan));
  }
  sourced.updates = emulator::UpdatesOf(input.job, prepared.partition,
                                        *studies::CostsOf(input));
  sourced.gpus_per_rank = input.job.parallel.gpus_per_rank();
  sourced.host_bandwidth = input.job.cluster.device.host_bandwidth;
  sourced.network = planner->costs().Network();
  sourced.jitter = input.job.cluster.jitter;
  sourced.missing_lookups =
      emulator::MissingLookups(input.job, *studies::CostsOf(input));
  return sourced;
}

absl::StatusOr<Bandwidth> HostBandwidthOf(
    const PlanSource& source, const std::vector<std::string>& args) {
  if (!source.plan_file.empty()) return Bandwidth{};
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(source.job.data_dir));
  PIPELOOM_ASSIGN_OR_RETURN(
      const JobSpec job,
      formats::LoadJob(name, data_dir,
                       [](const std::string& path) { return ReadFile(path); }));
  return job.cluster.device.host_bandwidth;
}

}  // namespace pipeloom::cli
