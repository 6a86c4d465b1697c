#include "service/jobs/job_files.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

// Returns a file's name. Steps are padded, so that the order of names is the
// order of steps.
std::string StepFileName(const std::string& job, int64_t attempt,
                         const std::string& kind, int64_t step,
                         const std::string& replica) {
  return absl::StrFormat("%s/%016d.%s", AttemptFolder(job, attempt, kind), step,
                         replica);
}

}  // namespace

std::string JobFolder(const std::string& job) {
  return absl::StrCat("jobs/", job);
}

std::string JobFileName(const std::string& job) {
  return absl::StrCat(JobFolder(job), "/job");
}

std::string AttemptFolder(const std::string& job, int64_t attempt,
                          const std::string& kind) {
  return attempt == 0
             ? absl::StrCat(JobFolder(job), "/", kind)
             : absl::StrCat(JobFolder(job), "/attempt-", attempt, "/", kind);
}

std::string BatchFileName(const v1::SubmitBatchRequest& request) {
  return StepFileName(
      request.job_id(), request.attempt(), "batches", request.step(),
      request.has_replica() ? absl::StrCat(request.replica()) : "all");
}

std::string PlanFileName(const std::string& job, int64_t attempt, int64_t step,
                         int32_t replica) {
  return StepFileName(job, attempt, "plans", step, absl::StrCat(replica));
}

bool ParsePlanFileName(const std::string& name, int64_t* step,
                       int32_t* replica) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  return parts.size() == 2 && absl::SimpleAtoi(parts[0], step) &&
         absl::SimpleAtoi(parts[1], replica) &&
         name == absl::StrFormat("%016d.%d", *step, *replica);
}

absl::Status JobFiles::Usable() const {
  if (dir_ == nullptr) return absl::FailedPreconditionError("no state folder");
  if (closed_) return absl::CancelledError("the job was closed");
  return absl::OkStatus();
}

absl::Status JobFiles::SaveJob(const v1::StoredJob& job) {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  PIPELOOM_RETURN_IF_ERROR(
      dir_->Write(JobFileName(job_), job.SerializeAsString()));
  job_saved_ = true;
  return absl::OkStatus();
}

absl::Status JobFiles::SaveBatch(const v1::StoredBatch& batch) const {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  return dir_->Write(BatchFileName(batch.request()), batch.SerializeAsString());
}

absl::Status JobFiles::SavePlan(const ReadyPlan& plan) const {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  return dir_->Write(PlanFileName(job_, plan.origin.attempt, plan.plan.step,
                                  plan.plan.replica),
                     ToStored(plan).SerializeAsString());
}

absl::StatusOr<std::string> JobFiles::Read(const std::string& name) const {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  return dir_->Read(name);
}

absl::StatusOr<ReadyPlan> JobFiles::LoadPlan(const PlanOrigin& origin,
                                             int64_t step,
                                             int32_t replica) const {
  const std::string name = PlanFileName(job_, origin.attempt, step, replica);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string bytes, Read(name));
  v1::StoredPlan stored;
  if (!stored.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat(name, " holds no plan"));
  }
  absl::StatusOr<ReadyPlan> plan = FromStored(stored);
  if (!plan.ok()) {
    return absl::DataLossError(
        absl::StrCat(name, ": ", plan.status().message()));
  }
  if (plan->job_id != job_ || plan->plan.step != step ||
      plan->plan.replica != replica) {
    return absl::DataLossError(absl::StrFormat(
        "%s holds the plan of step %d, replica %d of job %s", name,
        plan->plan.step, plan->plan.replica, plan->job_id));
  }
  if (plan->origin != origin) {
    return absl::DataLossError(
        absl::StrCat(name, " holds a plan for another ",
                     plan->origin.job != origin.job       ? "job of that id"
                     : plan->origin.batch != origin.batch ? "batch"
                     : plan->origin.costs != origin.costs ? "set of costs"
                                                          : "attempt"));
  }
  return plan;
}

absl::StatusOr<Fingerprint> JobFiles::FindPlan(const PlanOrigin& origin,
                                               int64_t step,
                                               int32_t replica) const {
  const std::string name = PlanFileName(job_, origin.attempt, step, replica);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string bytes, Read(name));
  v1::StoredPlanHead head;
  if (!head.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat(name, " holds no plan"));
  }
  if (!head.has_plan_checksum()) {
    return absl::NotFoundError(absl::StrCat(name, " has no checksum"));
  }
  if (head.job_id() != job_ || head.statistics().step() != step ||
      head.statistics().replica() != replica || OriginOf(head) != origin) {
    return absl::DataLossError(absl::StrCat(name, " holds another plan"));
  }
  return Fingerprint{head.plan_checksum().high(), head.plan_checksum().low()};
}

absl::StatusOr<std::string> JobFiles::KeepPlan(int64_t attempt, int64_t step,
                                               int32_t replica) const {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  return dir_->Keep(PlanFileName(job_, attempt, step, replica));
}

absl::Status JobFiles::RemoveStep(int64_t attempt, int64_t step,
                                  int32_t replicas) const {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  const auto batch = [&](const std::string& replica) {
    return dir_->Remove(StepFileName(job_, attempt, "batches", step, replica));
  };
  // Batches are removed first, so that after a crash no part of the step is
  // planned anew.
  absl::Status status = batch("all");
  for (int32_t r = 0; r < replicas; ++r) status.Update(batch(absl::StrCat(r)));
  for (int32_t r = 0; r < replicas; ++r) {
    status.Update(dir_->Remove(PlanFileName(job_, attempt, step, r)));
  }
  return status;
}

absl::Status JobFiles::RemoveAttempt(int64_t attempt) const {
  const ReaderMutexLock lock(&mutex_);
  PIPELOOM_RETURN_IF_ERROR(Usable());
  if (attempt != 0) {
    return dir_->Remove(absl::StrCat(JobFolder(job_), "/attempt-", attempt));
  }
  absl::Status status = dir_->Remove(AttemptFolder(job_, 0, "batches"));
  status.Update(dir_->Remove(AttemptFolder(job_, 0, "plans")));
  return status;
}

absl::StatusOr<std::string> JobFiles::Close() {
  const WriterMutexLock lock(&mutex_);
  if (dir_ == nullptr || closed_) return std::string();
  closed_ = true;
  return dir_->SetAside(JobFolder(job_));
}

}  // namespace pipeloom::service
