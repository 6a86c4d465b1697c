// Opening, closing, correcting and restoring jobs: the part of PlannerCore that
// is not on the way of a plan.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/trace_proto.h"
#include "service/core_errors.h"
#include "service/planner_core.h"

namespace pipeloom::service {
namespace {

// "vlm-s" and a hash of the content.
std::string IdFor(const std::string& name, const Fingerprint& request) {
  std::string id;
  for (const char c : name.substr(0, 40)) {
    id += IsJobId(std::string("x") + c) ? c : '-';
  }
  if (id.empty() || id[0] == '.') id = "job";
  return absl::StrFormat("%s-%012x", id, request.high & 0xffffffffffff);
}

IdVector<ModuleId, emulator::PassFactors> FactorsOf(
    const v1::StoredBatch& batch) {
  IdVector<ModuleId, emulator::PassFactors> factors;
  for (const v1::StoredCorrection& c : batch.corrections()) {
    factors.push_back({.forward = c.forward(),
                       .backward = c.backward(),
                       .weight_grad = c.weight_grad()});
  }
  return factors;
}

}  // namespace

absl::StatusOr<v1::OpenJobResponse> PlannerCore::OpenJob(
    const v1::OpenJobRequest& request) {
  if (!request.job_id().empty() && !IsJobId(request.job_id())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "job_id is \"%s\"; it must be 1 to 64 of a-z A-Z 0-9 . _ -, not with a "
        "dot in front",
        request.job_id()));
  }
  absl::StatusOr<JobSpec> spec = absl::InvalidArgumentError(
      "source is not set; it must be `job` or `shipped_job`");
  if (request.has_job()) {
    spec = JobFromProto(request.job(), options_.files);
  } else if (request.source_case() == v1::OpenJobRequest::kShippedJob) {
    spec = ShippedJob(request.shipped_job(), options_.files);
  }
  if (!spec.ok()) return spec.status();
  absl::StatusOr<BatchMetadata> sample =
      convert::FromProto(request.sample(), options_.batch);
  if (!sample.ok()) {
    return absl::Status(sample.status().code(),
                        absl::StrCat("sample.", sample.status().message()));
  }
  std::optional<Partition> given;
  if (request.has_partition()) {
    PIPELOOM_ASSIGN_OR_RETURN(given,
                              PartitionFromProto(request.partition(), *spec));
  }
  const Fingerprint print =
      FingerprintBuilder()
          .Add(FingerprintOf(*spec))
          .Add(convert::ToProto(*sample).SerializeAsString())
          .Add(request.partition().SerializeAsString())
          .Build();
  const std::string id =
      request.job_id().empty() ? IdFor(spec->name, print) : request.job_id();

  const auto respond = [](const Job& job, bool existed) {
    const JobSpec& s = job.served->spec();
    v1::OpenJobResponse response;
    response.set_job_id(job.served->id());
    *response.mutable_partition() = ToProto(job.served->partition(), s.model);
    response.set_num_ranks(s.parallel.pp);
    response.set_num_replicas(s.parallel.dp);
    response.set_existed(existed);
    for (const ModuleSpec& m : s.model.modules) {
      response.add_module_names(m.name);
    }
    return response;
  };
  const auto existing =
      [&]() -> std::optional<absl::StatusOr<v1::OpenJobResponse>> {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return std::nullopt;
    if (found->second.request == print) return respond(found->second, true);
    return absl::AlreadyExistsError(absl::StrFormat(
        "job_id is \"%s\"; a job of that id with other content is open", id));
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto answer = existing()) return *answer;
    if (draining_) return absl::UnavailableError("the service is going down");
    if (static_cast<int32_t>(jobs_.size()) + opening_ >= options_.max_jobs) {
      return Busy(
          absl::StrFormat("%d jobs are open, as many as may be", jobs_.size()),
          10'000);
    }
    ++opening_;
  }
  const std::string device = spec->cluster.device.name;
  absl::StatusOr<std::shared_ptr<const ServedJob>> served = ServedJob::Create(
      id, *std::move(spec), *sample, std::move(given),
      options_.profiles ? options_.profiles(device) : nullptr);
  v1::OpenJobResponse response;
  {
    const std::lock_guard lock(mutex_);
    --opening_;
    if (!served.ok()) return served.status();
    // Two may have opened the job at a time; their partitions are equal.
    if (auto answer = existing()) return *answer;
    Job job(*served);
    job.request = print;
    job.epoch = job.served->MakeEpoch(job.learned.factors());
    response = respond(job, false);
    jobs_.emplace(id, std::move(job));
  }
  SaveJob(id);
  log_->Write(LogLevel::kInfo, "job_opened",
              {{"job", id},
               {"ranks", int64_t{response.num_ranks()}},
               {"replicas", int64_t{response.num_replicas()}}});
  return response;
}

absl::StatusOr<v1::ReportTraceResponse> PlannerCore::Report(
    const v1::ReportTraceRequest& request) {
  absl::StatusOr<StepTrace> trace = convert::FromProto(request.trace());
  if (!trace.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace.", trace.status().message()));
  }
  v1::ReportTraceResponse response;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(request.job_id());
    if (found == jobs_.end()) return NoJob(request.job_id());
    Job& job = found->second;
    const planner::PlanKey key{request.job_id(), request.step(),
                               request.replica()};
    const auto step = job.steps.find(key.step);
    const std::shared_ptr<const ReadyPlan>* plan = nullptr;
    if (step != job.steps.end()) {
      const auto outcome = step->second.plans.find(key.replica);
      if (outcome != step->second.plans.end()) {
        plan = std::get_if<std::shared_ptr<const ReadyPlan>>(&outcome->second);
      }
    }
    if (plan == nullptr) {
      return absl::NotFoundError(absl::StrCat(NameOf(key), " has no plan"));
    }
    const ReadyPlan& ready = **plan;
    if (request.plan_checksum().high() != ready.checksum.high ||
        request.plan_checksum().low() != ready.checksum.low) {
      return absl::InvalidArgumentError(
          "plan_checksum is not that of the step's plan");
    }
    // Only spans of ranks that have not reported yet count.
    std::set<int32_t> ranks;
    for (const Span& span : trace->spans) ranks.insert(span.rank.value());
    std::erase_if(trace->spans, [&](const Span& span) {
      return step->second.reported.contains({key.replica, span.rank.value()});
    });
    response.set_mean_task_time_error(job.learned.Learn(
        ready.plan.graph, *trace, step->second.epoch->factors));
    for (const int32_t r : ranks) step->second.reported.emplace(key.replica, r);
    if (Differ(job.epoch->factors, job.learned.factors())) {
      job.epoch = job.served->MakeEpoch(job.learned.factors());
    }
    job.learned.AppendTo(job.served->spec().model, &response);
  }
  SaveJob(request.job_id());
  return response;
}

absl::StatusOr<v1::WhatIfResponse> PlannerCore::WhatIf(
    const v1::WhatIfRequest& request, const std::stop_token& stop) const {
  std::shared_ptr<const ServedJob> served;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(request.job_id());
    if (found == jobs_.end()) return NoJob(request.job_id());
    served = found->second.served;
  }
  return PlanVariants(
      served->spec(), request, options_.files, options_.profiles,
      {.batch = options_.batch, .tasks = options_.max_tasks}, stop);
}

v1::CloseJobResponse PlannerCore::Close(const std::string& job_id) {
  std::vector<std::function<void(PlanOrError)>> left;
  v1::CloseJobResponse response;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job_id);
    if (found == jobs_.end()) return response;
    response.set_existed(true);
    for (const auto& [number, step] : found->second.steps) {
      for (const auto& [replica, plan] : step.plans) {
        if (const auto* ready =
                std::get_if<std::shared_ptr<const ReadyPlan>>(&plan)) {
          plan_bytes_ -= (*ready)->size();
        }
      }
    }
    jobs_.erase(found);
    // With the lock: a job of this name that is opened next is another.
    ahead_.Cancel(job_id);
    state_->RemoveJob(job_id);
    std::vector<planner::PlanKey> keys;
    for (const auto& [key, id] : waiting_) {
      if (key.job == job_id && (keys.empty() || keys.back() != key)) {
        keys.push_back(key);
      }
    }
    for (const planner::PlanKey& key : keys) {
      for (auto& done : TakeWaiters(key)) left.push_back(std::move(done));
    }
  }
  for (const auto& done : left) done(absl::NotFoundError("the job was closed"));
  log_->Write(LogLevel::kInfo, "job_closed", {{"job", job_id}});
  return response;
}

void PlannerCore::SaveJob(const std::string& id) {
  if (!state_->enabled()) return;
  v1::StoredJob stored;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    const Job& job = found->second;
    stored.set_job_id(id);
    *stored.mutable_job() = convert::ToProto(job.served->spec());
    *stored.mutable_partition() =
        ToProto(job.served->partition(), job.served->spec().model);
    stored.mutable_request()->set_high(job.request.high);
    stored.mutable_request()->set_low(job.request.low);
    job.learned.AppendTo(&stored);
  }
  const absl::Status saved = state_->Save(stored);
  if (!saved.ok()) StateError("job", saved);
}

void PlannerCore::Restore() {
  for (CoreState::Restored& restored : state_->Load()) {
    const v1::StoredJob& stored = restored.job;
    absl::StatusOr<JobSpec> spec = JobFromProto(stored.job(), options_.files);
    absl::StatusOr<Partition> partition =
        spec.ok() ? PartitionFromProto(stored.partition(), *spec)
                  : spec.status();
    if (!partition.ok()) {
      log_->Write(
          LogLevel::kError, "job_not_restored",
          {{"job", stored.job_id()}, {"error", partition.status().ToString()}});
      continue;
    }
    const std::string device = spec->cluster.device.name;
    absl::StatusOr<std::shared_ptr<const ServedJob>> created =
        ServedJob::Create(
            stored.job_id(), *std::move(spec), {}, *std::move(partition),
            options_.profiles ? options_.profiles(device) : nullptr);
    if (!created.ok()) {
      log_->Write(
          LogLevel::kError, "job_not_restored",
          {{"job", stored.job_id()}, {"error", created.status().ToString()}});
      continue;
    }
    const std::shared_ptr<const ServedJob> served = *std::move(created);
    Job& job = jobs_.emplace(stored.job_id(), Job(served)).first->second;
    job.request = {stored.request().high(), stored.request().low()};
    job.learned.Restore(stored);
    job.epoch = served->MakeEpoch(job.learned.factors());
    for (const v1::StoredBatch& b : restored.batches) {
      absl::StatusOr<StepBatch> made =
          MakeStepBatch(*served, b.request(), options_.batch);
      if (!made.ok()) continue;
      auto batch = std::make_shared<StepBatch>(*std::move(made));
      Step& step = job.steps[batch->step];
      if (step.epoch == nullptr) step.epoch = served->MakeEpoch(FactorsOf(b));
      batch->epoch = step.epoch;
      step.batches[batch->replica] = batch;
      job.newest = std::max(job.newest, batch->step);
    }
    for (ReadyPlan& plan : restored.plans) {
      const auto step = job.steps.find(plan.plan.step);
      if (step == job.steps.end()) continue;
      PrepareShares(&plan);
      plan_bytes_ += plan.size();
      ++metrics_->plans_restored;
      const int32_t replica = plan.plan.replica;
      step->second.plans[replica] =
          std::make_shared<const ReadyPlan>(std::move(plan));
    }
    std::vector<std::pair<int64_t, int32_t>> gone;
    Forget(stored.job_id(), &job, &gone);
    for (const auto& [number, step] : job.steps) {
      for (const auto& [key, batch] : step.batches) {
        for (const int32_t r : ReplicasOf(*batch, served->spec().parallel.dp)) {
          if (!step.plans.contains(r)) Enqueue(served, batch, r);
        }
      }
    }
    log_->Write(LogLevel::kInfo, "job_restored",
                {{"job", stored.job_id()},
                 {"steps", static_cast<int64_t>(job.steps.size())},
                 {"plans", static_cast<int64_t>(restored.plans.size())}});
  }
}

}  // namespace pipeloom::service
