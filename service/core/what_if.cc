#include "service/core/what_if.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "emulator/cluster/meeting_replicas.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/schedule.h"
#include "planner/job/common_order.h"
#include "planner/step/plan_step.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/trace_proto.h"
#include "service/jobs/served_job.h"
#include "service/jobs/step_batch.h"

namespace pipeloom::service {
namespace {

constexpr double kMaxScale = 1000;
constexpr int kMaxVariants = 64;
constexpr int kMaxChanges = 64;
constexpr int32_t kMaxReplicas = 8;
constexpr int64_t kDefaultEvaluations = 2000;
constexpr int64_t kMaxEvaluations = 1'000'000;

absl::Status CheckFactor(const std::string& field, double factor) {
  if (factor >= 1 / kMaxScale && factor <= kMaxScale) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g; it must be in [%g, %g]", field, factor,
                      1 / kMaxScale, kMaxScale));
}

Duration Times(Duration time, double factor) {
  return Nanoseconds(std::llround(Real(time.count()) * factor));
}

bool Matches(const v1::TaskScale& scale, const StageGraph& graph,
             const Task& task) {
  if (scale.has_rank() && task.rank.value() != scale.rank()) return false;
  if (!scale.module().empty() &&
      graph.module_names()[static_cast<size_t>(task.module.value())] !=
          scale.module()) {
    return false;
  }
  return scale.kind() == v1::TASK_KIND_UNSPECIFIED ||
         static_cast<int>(scale.kind()) == static_cast<int>(task.pass) + 1;
}

absl::StatusOr<StageGraph> Scaled(const StageGraph& graph,
                                  const v1::EmulateRequest& request) {
  const double transfers =
      request.transfer_scale() == 0 ? 1 : request.transfer_scale();
  PIPELOOM_RETURN_IF_ERROR(CheckFactor("transfer_scale", transfers));
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (int i = 0; i < request.scales_size(); ++i) {
    const v1::TaskScale& scale = request.scales(i);
    const std::string field = absl::StrFormat("scales[%d]", i);
    PIPELOOM_RETURN_IF_ERROR(
        CheckFactor(absl::StrCat(field, ".factor"), scale.factor()));
    if (scale.has_rank() &&
        (scale.rank() < 0 || scale.rank() >= graph.num_ranks())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s.rank is %d; it must be in [0, %d)", field,
                          scale.rank(), graph.num_ranks()));
    }
    const std::vector<std::string>& names = graph.module_names();
    if (!scale.module().empty() &&
        std::find(names.begin(), names.end(), scale.module()) == names.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s.module is \"%s\", which the plan has not", field,
                          scale.module()));
    }
    for (Task& task : tasks) {
      if (Matches(scale, graph, task)) {
        task.duration = Times(task.duration, scale.factor());
      }
    }
  }
  IdVector<EdgeId, Dependency> edges = graph.edges();
  if (transfers != 1) {
    for (Dependency& edge : edges) {
      edge.delay = Times(edge.delay, transfers);
      edge.occupancy = std::min(edge.delay, Times(edge.occupancy, transfers));
    }
  }
  return StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                            std::move(tasks), std::move(edges));
}

void SetFigures(const ExecutionPlan& plan, const StepTrace& trace,
                Duration step_time, Duration bound, v1::PlanFigures* figures) {
  figures->set_step_time_ns(step_time.count());
  figures->set_lower_bound_ns(bound.count());
  figures->set_bubble_ratio(BubbleRatio(plan.graph, step_time));
  figures->set_epilogue_ratio(EpilogueRatio(plan.graph, step_time));
  figures->set_mfu(Mfu(plan, step_time));
  for (const MemoryPeak& peak : MemoryPeaks(trace)) {
    figures->add_peak_bytes(peak.total.count());
  }
}

// Returns an error for a change that has no meaning in a call of WhatIf, or
// whose value would be taken for another one.
absl::Status CheckChange(const v1::JobChange& change, const v1::Job& job) {
  const std::string& path = change.path();
  if (path == "training.microbatches" ||
      path == "training.global_batch_samples" ||
      path == "training.global_batch_tokens") {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is ", change.value(),
        "; a step here has as many microbatches as its samples fill, whatever "
        "the job says: send another number of samples in `batch`, or change "
        "training.microbatch_tokens"));
  }
  const v1::ParallelLayout& layout = job.parallel();
  for (const auto& [name, size] :
       {std::pair("tp", layout.tp()), std::pair("cp", layout.cp()),
        std::pair("ep", layout.ep()), std::pair("pp", layout.pp()),
        std::pair("dp", layout.dp())}) {
    if (path == absl::StrCat("parallel.", name) && size == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is 0; it must be at least 1"));
    }
  }
  return absl::OkStatus();
}

// Returns the plans of the step's first replicas, in one order if they meet.
absl::StatusOr<std::vector<planner::PlanResult>> PlanReplicas(
    const ServedJob& job, const StepBatch& batch,
    const v1::WhatIfRequest& request, const WhatIfLimits& limits,
    const std::stop_token& stop) {
  const planner::PreparedJob& prepared = batch.epoch->planner->prepared();
  const int32_t replicas = std::min(job.spec().parallel.dp, kMaxReplicas);
  const bool shares_order = planner::NeedsCommonOrder(prepared);
  const int32_t meet = emulator::ReplicasThatMeet(job.spec());
  std::optional<planner::CommonOrder> common;
  std::vector<planner::PlanResult> plans;
  for (int32_t replica = 0; replica < replicas; ++replica) {
    if (stop.stop_requested()) return absl::CancelledError("the caller left");
    PIPELOOM_ASSIGN_OR_RETURN(const int64_t tasks,
                              CountTasks(job, batch, replica));
    if (tasks > limits.tasks) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("the plan would have up to %d tasks; at most %d are "
                          "planned",
                          tasks, limits.tasks));
    }
    planner::PlanInput input;
    input.packed = &batch.packed;
    input.replica = replica;
    input.seed = job.spec().search.seed;
    input.budget.max_evaluations =
        request.evaluations() > 0 ? request.evaluations() : kDefaultEvaluations;
    input.budget.stop = stop;
    input.budget.threads = limits.threads;
    if (const int32_t own = job.spec().search.workers; own > 0) {
      input.budget.workers = own;
    }
    if (shares_order && replica % meet == 0) {
      PIPELOOM_ASSIGN_OR_RETURN(common,
                                planner::CommonOrder::Search(prepared, input));
    }
    PIPELOOM_ASSIGN_OR_RETURN(planner::PlanResult result,
                              shares_order
                                  ? common->Plan(input)
                                  : planner::PlanStep(prepared, input));
    plans.push_back(std::move(result));
  }
  return plans;
}

// Returns the least time of a step of replicas that meet in passes, or 0 if
// they do not. FailedPrecondition: their passes differ.
absl::StatusOr<Duration> TimeTogether(
    const emulator::StageCostModel& costs,
    const std::vector<planner::PlanResult>& plans) {
  const int32_t meet = emulator::ReplicasThatMeet(costs.job());
  if (meet == 1) return kZero;
  std::vector<const ExecutionPlan*> replicas;
  for (const planner::PlanResult& r : plans) {
    replicas.push_back(&r.plan);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const emulator::MeetingStep step,
                            emulator::EmulateMeeting(costs.job(), replicas));
  if (!step.different.has_value()) return step.step_time;
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d replicas meet within passes (parallel.ep over replicas, ZeRO-2 or "
      "-3), and their plans differ in the passes of rank %d, so that they "
      "cannot run together: give all replicas the same modules in each "
      "microbatch",
      meet, step.different->value()));
}

absl::Status PlanVariant(const JobSpec& base, const v1::JobVariant& variant,
                         const v1::WhatIfRequest& request,
                         const ShippedFiles& files,
                         const ProfileSource& profiles,
                         const WhatIfLimits& limits,
                         const std::stop_token& stop, v1::WhatIfRow* row) {
  v1::Job proto = convert::ToProto(base);
  for (const v1::JobChange& change : variant.changes()) {
    PIPELOOM_RETURN_IF_ERROR(SetField(change.path(), change.value(), &proto));
    PIPELOOM_RETURN_IF_ERROR(CheckChange(change, proto));
  }
  PIPELOOM_ASSIGN_OR_RETURN(JobSpec spec, JobFromProto(proto, files));
  PIPELOOM_ASSIGN_OR_RETURN(const BatchMetadata sample,
                            convert::FromProto(request.batch(), limits.batch));
  PIPELOOM_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedJob> job,
                            ServedJob::Create("what-if", std::move(spec),
                                              sample, std::nullopt, profiles));
  v1::SubmitBatchRequest submit;
  *submit.mutable_batch() = request.batch();
  PIPELOOM_ASSIGN_OR_RETURN(StepBatch batch,
                            MakeStepBatch(*job, submit, limits.batch));
  batch.epoch = job->MakeEpoch({});
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<planner::PlanResult> plans,
                            PlanReplicas(*job, batch, request, limits, stop));
  const planner::PlanResult& slowest = *std::max_element(
      plans.begin(), plans.end(), [](const auto& a, const auto& b) {
        return a.predicted.finish < b.predicted.finish;
      });
  PIPELOOM_ASSIGN_OR_RETURN(const Duration together,
                            TimeTogether(batch.epoch->planner->costs(), plans));
  SetFigures(slowest.plan, slowest.predicted,
             std::max(together, slowest.predicted.step_time()),
             slowest.lower_bound, row->mutable_figures());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::EmulateResponse> EmulatePlan(
    const ExecutionPlan& plan, const v1::EmulateRequest& request) {
  ExecutionPlan changed = plan;
  PIPELOOM_ASSIGN_OR_RETURN(changed.graph, Scaled(plan.graph, request));
  changed.links.blocking_sends |= request.blocking_sends();
  switch (request.sharing()) {
    case v1::LINK_SHARING_UNSPECIFIED:
      break;
    case v1::LINK_SHARING_PER_PAIR:
      changed.links.sharing = LinkSharing::kPerPair;
      break;
    case v1::LINK_SHARING_NONE:
      changed.links.sharing = LinkSharing::kNone;
      break;
    case v1::LINK_SHARING_PER_RANK:
      changed.links.sharing = LinkSharing::kPerRank;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "sharing is %d; it must be in [0, 3]", request.sharing()));
  }
  PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                            emulator::EmulateStep(changed));
  v1::EmulateResponse response;
  // The plan's lower bound does not hold for changed times.
  const bool as_it_was = changed.graph == plan.graph;
  SetFigures(changed, trace, trace.step_time(),
             as_it_was ? plan.lower_bound : kZero, response.mutable_figures());
  if (request.with_trace()) *response.mutable_trace() = convert::ToProto(trace);
  return response;
}

absl::StatusOr<v1::WhatIfResponse> PlanVariants(
    const JobSpec& job, const v1::WhatIfRequest& request,
    const ShippedFiles& files, const ProfileSource& profiles,
    const WhatIfLimits& limits, const std::stop_token& stop) {
  if (request.variants_size() < 1 || request.variants_size() > kMaxVariants) {
    return absl::InvalidArgumentError(
        absl::StrFormat("variants has %d entries; it must have 1 to %d",
                        request.variants_size(), kMaxVariants));
  }
  if (request.evaluations() < 0 || request.evaluations() > kMaxEvaluations) {
    return absl::InvalidArgumentError(
        absl::StrFormat("evaluations is %d; it must be in [0, %d]",
                        request.evaluations(), kMaxEvaluations));
  }
  for (int i = 0; i < request.variants_size(); ++i) {
    if (request.variants(i).changes_size() > kMaxChanges) {
      return absl::InvalidArgumentError(
          absl::StrFormat("variants[%d].changes has %d entries; it must have "
                          "at most %d",
                          i, request.variants(i).changes_size(), kMaxChanges));
    }
  }
  const absl::StatusOr<BatchMetadata> batch =
      convert::FromProto(request.batch(), limits.batch);
  if (!batch.ok()) {
    return absl::Status(batch.status().code(),
                        absl::StrCat("batch.", batch.status().message()));
  }
  if (batch->samples.empty()) {
    return absl::InvalidArgumentError(
        "batch.samples is empty; it must have at least one sample");
  }
  v1::WhatIfResponse response;
  for (const v1::JobVariant& variant : request.variants()) {
    v1::WhatIfRow& row = *response.add_rows();
    row.set_name(variant.name());
    const absl::Status status =
        PlanVariant(job, variant, request, files, profiles, limits, stop, &row);
    if (absl::IsCancelled(status)) return status;
    if (!status.ok()) row.set_error(std::string(status.message()));
  }
  return response;
}

}  // namespace pipeloom::service
