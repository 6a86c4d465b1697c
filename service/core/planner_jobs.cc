// Opening, closing, correcting and restoring jobs: the part of PlannerCore that
// does not make or hand out plans.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/trace_proto.h"
#include "service/core/core_errors.h"
#include "service/core/planner_core.h"

namespace pipeloom::service {
namespace {

// Returns an id made from the job's name and a hash of the content.
std::string IdFor(const std::string& name, const Fingerprint& request) {
  std::string id;
  for (const char c : name.substr(0, 40)) {
    id += IsJobId(std::string("x") + c) ? c : '-';
  }
  if (id.empty() || id[0] == '.') id = "job";
  return absl::StrFormat("%s-%012x", id, request.high & 0xffffffffffff);
}

// Returns when a search for a partition has to end: after the time asked for,
// within the service's limit, and with time left to answer before the caller's
// deadline.
PlannerCore::Clock::time_point PartitionEnd(
    PlannerCore::Clock::time_point begin, std::chrono::nanoseconds asked,
    std::chrono::nanoseconds limit, PlannerCore::Clock::time_point deadline) {
  const PlannerCore::Clock::time_point end = begin + std::min(asked, limit);
  if (deadline == PlannerCore::Clock::time_point::max()) return end;
  return std::min(end, begin + (deadline - begin) * 3 / 4);
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
    const v1::OpenJobRequest& request, Clock::time_point deadline,
    const std::stop_token& stop, std::function<void()> again) {
  const Clock::time_point begin = Clock::now();
  if (request.partition_time_us() < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("partition_time_us is %d; it must be >= 0",
                        request.partition_time_us()));
  }
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
  std::optional<Partition> resumed;
  if (request.has_resume()) {
    absl::StatusOr<Partition> partition =
        PartitionFromProto(request.resume(), *spec);
    if (!partition.ok()) {
      return absl::Status(
          partition.status().code(),
          absl::StrCat("resume: ", partition.status().message()));
    }
    resumed = *std::move(partition);
  }
  FingerprintBuilder content;
  content.Add(FingerprintOf(*spec))
      .Add(convert::ToProto(*sample).SerializeAsString())
      .Add(request.partition().SerializeAsString());
  if (request.partition_time_us() > 0) content.Add("searched");
  if (request.defer_surplus()) content.Add("deferred");
  const Fingerprint print = content.Build();
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
    response.set_partitions_tried(job.served->partitions_tried());
    response.set_partition_cut_short(job.cut_short);
    for (const ModuleSpec& m : s.model.modules) {
      response.add_module_names(m.name);
    }
    return response;
  };
  const auto existing =
      [&]() -> std::optional<absl::StatusOr<v1::OpenJobResponse>> {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return std::nullopt;
    if (found->second.request == print) {
      if (resumed.has_value() &&
          *resumed != found->second.served->partition()) {
        return absl::AlreadyExistsError(absl::StrFormat(
            "job_id is \"%s\"; it is open with another partition than "
            "`resume`",
            id));
      }
      return respond(found->second, true);
    }
    return absl::AlreadyExistsError(absl::StrFormat(
        "job_id is \"%s\"; a job of that id with other content is open", id));
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto answer = existing()) return *answer;
    if (const auto other = opening_.find(id); other != opening_.end()) {
      if (again) other->second.push_back(std::move(again));
      return absl::AbortedError("the job is being opened by another call");
    }
    if (draining_) return absl::UnavailableError("the service is going down");
    if (jobs_.size() + opening_.size() >=
        static_cast<size_t>(options_.max_jobs)) {
      return Busy(
          absl::StrFormat("%d jobs are open, as many as may be", jobs_.size()),
          10'000);
    }
    opening_.try_emplace(id);
  }
  const bool searched = request.partition_time_us() > 0 && !resumed.has_value();
  PartitionEffort effort;
  // Requested at the end of the search and when the caller leaves; it also ends
  // evaluations that run already.
  const auto over = std::make_shared<std::stop_source>();
  const std::stop_callback left(stop, [&] { over->request_stop(); });
  if (searched) {
    const Clock::time_point end = PartitionEnd(
        begin, std::chrono::microseconds(request.partition_time_us()),
        options_.partition_time, deadline);
    timer_.At(end, [over] { over->request_stop(); });
    effort.stop = over->get_token();
    effort.expired = [over] { return over->stop_requested(); };
    effort.threads = options_.threads;
  }
  absl::StatusOr<std::shared_ptr<const ServedJob>> served =
      stop.stop_requested()
          ? absl::CancelledError("the caller left")
          : ServedJob::Create(id, *std::move(spec), *sample,
                              resumed.has_value() ? resumed : given,
                              options_.profiles, effort,
                              request.defer_surplus());
  v1::OpenJobResponse response;
  std::vector<std::function<void()>> others;
  // Called without the lock, however this call ends.
  const absl::Cleanup tell = [&] {
    for (const auto& other : others) other();
  };
  {
    const std::lock_guard lock(mutex_);
    others = std::move(opening_.extract(id).mapped());
    if (!served.ok()) return served.status();
    if (stop.stop_requested()) return absl::CancelledError("the caller left");
    if (draining_) return absl::UnavailableError("the service is going down");
    Job job(*served);
    job.request = print;
    job.cut_short = over->stop_requested();
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
  const planner::PlanKey key{request.job_id(), request.step(),
                             request.replica()};
  std::shared_ptr<std::mutex> reporting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(key.job);
    if (found == jobs_.end()) return NoJob(key.job);
    reporting = found->second.reporting;
  }
  // Learning from a long trace is done without the core's lock.
  const std::lock_guard one_report(*reporting);
  std::shared_ptr<const ServedJob> served;
  std::shared_ptr<const ReadyPlan> ready;
  std::shared_ptr<const CostEpoch> epoch;
  std::optional<LearnedCosts> learned;
  std::set<int32_t> ranks;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(key.job);
    if (found == jobs_.end() || found->second.reporting != reporting) {
      return NoJob(key.job);
    }
    const Job& job = found->second;
    const auto step = job.steps.find(key.step);
    if (step != job.steps.end()) {
      const auto outcome = step->second.plans.find(key.replica);
      if (outcome != step->second.plans.end()) {
        const auto* plan =
            std::get_if<std::shared_ptr<const ReadyPlan>>(&outcome->second);
        if (plan != nullptr) ready = *plan;
      }
    }
    if (ready == nullptr) {
      return absl::NotFoundError(absl::StrCat(NameOf(key), " has no plan"));
    }
    if (request.plan_checksum().high() != ready->checksum.high ||
        request.plan_checksum().low() != ready->checksum.low) {
      return absl::InvalidArgumentError(
          "plan_checksum is not that of the step's plan");
    }
    // Only spans of ranks that have not reported yet count.
    for (const Span& span : trace->spans) ranks.insert(span.rank.value());
    std::erase_if(trace->spans, [&](const Span& span) {
      return step->second.reported.contains({key.replica, span.rank.value()});
    });
    served = job.served;
    epoch = step->second.epoch;
    learned = job.learned;
  }
  v1::ReportTraceResponse response;
  response.set_mean_task_time_error(
      learned->Learn(ready->plan.graph, *trace, epoch->factors));
  learned->AppendTo(served->spec().model, &response);
  std::shared_ptr<const CostEpoch> next = served->MakeEpoch(learned->factors());
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(key.job);
    if (found == jobs_.end() || found->second.reporting != reporting) {
      return NoJob(key.job);
    }
    Job& job = found->second;
    job.learned = *std::move(learned);
    if (Differ(job.epoch->factors, next->factors)) job.epoch = std::move(next);
    if (const auto step = job.steps.find(key.step); step != job.steps.end()) {
      for (const int32_t r : ranks) {
        step->second.reported.emplace(key.replica, r);
      }
    }
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
  // The job and its files are freed without the lock.
  decltype(jobs_)::node_type closed;
  std::string files;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job_id);
    if (found == jobs_.end()) return response;
    response.set_existed(true);
    for (const auto& [number, step] : found->second.steps) {
      for (const auto& [replica, plan] : step.plans) {
        if (const auto* ready =
                std::get_if<std::shared_ptr<const ReadyPlan>>(&plan)) {
          plan_bytes_ -= (*ready)->size;
        }
      }
    }
    closed = jobs_.extract(found);
    // Done with the lock held, as another job of this name may be opened next.
    ahead_.Cancel(job_id);
    files = state_->RemoveJob(job_id);
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
  state_->Discard(files);
  log_->Write(LogLevel::kInfo, "job_closed", {{"job", job_id}});
  return response;
}

void PlannerCore::SaveJob(const std::string& id) {
  if (!state_->enabled()) return;
  v1::StoredJob stored;
  std::shared_ptr<const ServedJob> served;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    const Job& job = found->second;
    served = job.served;
    stored.mutable_request()->set_high(job.request.high);
    stored.mutable_request()->set_low(job.request.low);
    job.learned.AppendTo(&stored);
  }
  stored.set_job_id(id);
  *stored.mutable_job() = convert::ToProto(served->spec());
  *stored.mutable_partition() =
      ToProto(served->partition(), served->spec().model);
  if (served->sample_costs().has_value()) {
    *stored.mutable_sample() = convert::ToProto(served->sample());
  }
  stored.set_defer_surplus(served->defer_surplus());
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
    const absl::StatusOr<BatchMetadata> sample =
        convert::FromProto(stored.sample(), options_.batch);
    absl::StatusOr<std::shared_ptr<const ServedJob>> created =
        sample.ok()
            ? ServedJob::Create(stored.job_id(), *std::move(spec), *sample,
                                *std::move(partition), options_.profiles, {},
                                stored.defer_surplus())
            : sample.status();
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
      MakeShares(&plan);
      plan_bytes_ += plan.size;
      ++metrics_->plans_restored;
      const int32_t replica = plan.plan.replica;
      step->second.plans[replica] =
          std::make_shared<const ReadyPlan>(std::move(plan));
    }
    std::vector<std::pair<int64_t, Step>> gone;
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
