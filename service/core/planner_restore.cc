// The state folder: what is saved of a job, and what is restored at the start.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/carried_step_proto.h"
#include "proto/convert/job_proto.h"
#include "service/core/planner_core.h"
#include "service/jobs/job_costs.h"
#include "service/jobs/job_errors.h"

namespace pipeloom::service {
namespace {

// Plans of so many of a job's newest steps are read when the service starts, as
// they are asked for and reported on first; others when a rank asks.
constexpr int64_t kReadSteps = 4;

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

void PlannerCore::SaveJob(const std::string& id) {
  if (!store_->enabled()) return;
  std::shared_ptr<JobFiles> files;
  {
    const MutexLock lock(&mutex_);
    const Job* job = table_.Find(id);
    if (job == nullptr) return;
    files = job->files;
  }
  const MutexLock one_at_a_time(&files->saving());
  v1::StoredJob stored;
  std::shared_ptr<const ServedJob> served;
  {
    const MutexLock lock(&mutex_);
    const Job* job = table_.Find(id);
    if (job == nullptr || job->files != files) return;
    served = job->served;
    stored.mutable_request()->set_high(job->request.high);
    stored.mutable_request()->set_low(job->request.low);
    stored.set_attempt(job->attempt);
    if (job->close_key != Fingerprint()) {
      stored.mutable_close_key()->set_high(job->close_key.high);
      stored.mutable_close_key()->set_low(job->close_key.low);
    }
    stored.set_learned(job->learned.ToString());
  }
  stored.set_job_id(id);
  *stored.mutable_job() = convert::ToProto(served->spec());
  *stored.mutable_partition() =
      ToProto(served->partition(), served->spec().model);
  if (served->sample_costs().has_value()) {
    *stored.mutable_sample() = convert::ToProto(served->sample());
  }
  stored.set_defer_surplus(served->defer_surplus());
  if (!served->warm_up().empty()) {
    *stored.mutable_warm_up() = convert::ToProto(served->warm_up());
  }
  const absl::Status saved = files->SaveJob(stored);
  store_->NoteError("job", saved);
  if (!saved.ok()) return;
  const MutexLock lock(&mutex_);
  Job* job = table_.Find(id);
  if (job != nullptr && job->files == files) {
    job->attempt_saved = job->attempt == stored.attempt();
  }
}

absl::Status PlannerCore::Restore() {
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<JobStore::Restored> all,
                            store_->Load());
  for (JobStore::Restored& restored : all) {
    const v1::StoredJob& stored = restored.job;
    absl::StatusOr<JobSpec> spec = JobFromProto(stored.job(), options_.files);
    absl::StatusOr<Partition> partition =
        spec.ok() ? PartitionFromProto(stored.partition(), *spec)
                  : spec.status();
    const absl::StatusOr<BatchMetadata> sample =
        partition.ok() ? convert::FromProto(stored.sample(), options_.batch)
                       : partition.status();
    absl::StatusOr<Lessons> lessons =
        sample.ok() ? convert::FromProto(stored.warm_up()) : sample.status();
    absl::StatusOr<std::shared_ptr<const ServedJob>> served =
        lessons.ok()
            ? ServedJob::Create(stored.job_id(), *std::move(spec), *sample,
                                *std::move(partition), options_.profiles,
                                {.lessons = *std::move(lessons)},
                                stored.defer_surplus())
            : lessons.status();
    if (!served.ok()) {
      log_->Write(LogLevel::kError, "job_not_restored",
                  {{"job", stored.job_id()},
                   {"error", served.status().ToString()},
                   {"kept_as", JobFolder(stored.job_id())}});
      continue;
    }
    PIPELOOM_RETURN_IF_ERROR(RestoreJob(*served, restored));
  }
  return absl::OkStatus();
}

absl::Status PlannerCore::RestoreJob(
    const std::shared_ptr<const ServedJob>& served,
    const JobStore::Restored& restored) {
  const v1::StoredJob& stored = restored.job;
  const std::string& id = stored.job_id();
  const int32_t replicas = served->spec().parallel.dp;
  std::vector<std::pair<Submission, int32_t>> left;
  Gone gone;
  {
    const MutexLock lock(&mutex_);
    Job& job = table_.Add(id, Job(served));
    job.request = {stored.request().high(), stored.request().low()};
    job.close_key = {stored.close_key().high(), stored.close_key().low()};
    job.files = restored.files;
    job.attempt = restored.attempt;
    job.attempt_saved = restored.attempt == stored.attempt();
    job.used = options_.now();
    absl::StatusOr<emulator::CostLearner> learned =
        LearnedOf(stored, served->spec().model);
    if (learned.ok()) {
      job.learned = *std::move(learned);
    } else {
      log_->Write(LogLevel::kError, "learned_costs_not_restored",
                  {{"job", id}, {"error", learned.status().ToString()}});
    }
    job.epoch = served->MakeEpoch(FactorsOf(job.learned, served->spec().model));
    for (const v1::StoredBatch& b : restored.batches) {
      absl::StatusOr<StepBatch> made =
          MakeStepBatch(*served, b.request(), options_.batch);
      if (!made.ok()) {
        log_->Write(LogLevel::kError, "batch_not_restored",
                    {{"job", id},
                     {"step", b.request().step()},
                     {"error", made.status().ToString()}});
        continue;
      }
      Step& step = job.steps[made->step];
      if (step.epoch == nullptr) step.epoch = served->MakeEpoch(FactorsOf(b));
      made->epoch = step.epoch;
      made->job = job.request;
      job.newest = std::max(job.newest, made->step);
      const int32_t replica = made->replica;
      step.batches[replica] =
          std::make_shared<const StepBatch>(*std::move(made));
    }
    table_.Forget(&job, &gone);
    for (const JobStore::PlanName& name : restored.plans) {
      PIPELOOM_RETURN_IF_ERROR(RestorePlan(restored, name, &job));
    }
    for (const auto& [number, step] : job.steps) {
      for (const auto& [key, batch] : step.batches) {
        for (const int32_t r : ReplicasOf(*batch, replicas)) {
          if (step.plans.contains(r)) continue;
          left.push_back({{.job = served,
                           .files = job.files,
                           .batch = batch,
                           .saved = true},
                          r});
        }
      }
    }
    log_->Write(LogLevel::kInfo, "job_restored",
                {{"job", id},
                 {"attempt", job.attempt},
                 {"steps", static_cast<int64_t>(job.steps.size())},
                 {"plans", static_cast<int64_t>(restored.plans.size())}});
  }
  Finish(gone);
  for (const auto& [submission, replica] : left) Enqueue(submission, replica);
  return absl::OkStatus();
}

absl::Status PlannerCore::RestorePlan(const JobStore::Restored& restored,
                                      const JobStore::PlanName& name,
                                      Job* job) {
  const auto step = job->steps.find(name.step);
  if (step == job->steps.end()) {
    if (table_.IsForgotten(*job, name.step)) {
      // A crash while its step was removed left it behind.
      store_->NoteError("plan",
                        restored.files->RemoveStep(restored.attempt, name.step,
                                                   name.replica + 1));
    }
    // Else its batch was lost. The plan is found when the batch is sent again.
    return absl::OkStatus();
  }
  std::shared_ptr<const StepBatch> batch;
  for (const int32_t r : {-1, name.replica}) {
    const auto it = step->second.batches.find(r);
    if (it != step->second.batches.end()) batch = it->second;
  }
  if (batch == nullptr) return absl::OkStatus();
  if (name.step <= job->newest - kReadSteps) {
    // If there is anything wrong with it, reading it in full says what.
    const absl::StatusOr<Fingerprint> checksum =
        restored.files->FindPlan(OriginOf(*batch), name.step, name.replica);
    if (checksum.ok()) {
      table_.SetOutcome(name.replica, OnDisk{*checksum}, job, &step->second);
      return absl::OkStatus();
    }
  }
  absl::StatusOr<ReadyPlan> plan =
      restored.files->LoadPlan(OriginOf(*batch), name.step, name.replica);
  if (!plan.ok()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::string kept,
        restored.files->KeepPlan(restored.attempt, name.step, name.replica));
    ++metrics_->state_errors;
    log_->Write(LogLevel::kError, "plan_damaged",
                {{"job", restored.job.job_id()},
                 {"step", name.step},
                 {"replica", int64_t{name.replica}},
                 {"error", plan.status().message()},
                 {"kept_as", kept}});
    return absl::OkStatus();
  }
  ++metrics_->plans_restored;
  MakeShares(&*plan);
  Outcome outcome = OnDisk{plan->checksum};
  if (table_.HasRoom(plan->size)) {
    outcome = std::make_shared<const ReadyPlan>(*std::move(plan));
  }
  table_.SetOutcome(name.replica, std::move(outcome), job, &step->second);
  return absl::OkStatus();
}

}  // namespace pipeloom::service
