#include "service/jobs/job_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pipeloom::service {

bool IsJobId(const std::string& id) {
  return !id.empty() && id.size() <= 64 && id[0] != '.' &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  c == '.' || c == '_' || c == '-';
         });
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(
    const std::string& path, Log* log, Metrics* metrics) {
  std::unique_ptr<JobStore> state(new JobStore(log, metrics));
  if (!path.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(state->dir_, StateDir::Open(path));
  }
  return state;
}

void JobStore::NoteError(absl::string_view what,
                         const absl::Status& status) const {
  if (status.ok() || !enabled() || absl::IsCancelled(status)) return;
  ++metrics_->state_errors;
  log_->Write(LogLevel::kError, "state_error",
              {{"what", what}, {"error", status.ToString()}});
}

absl::StatusOr<std::shared_ptr<JobFiles>> JobStore::Begin(
    const std::string& job) const {
  if (enabled()) {
    const absl::StatusOr<std::string> kept = dir_->Keep(JobFolder(job));
    if (kept.ok()) {
      log_->Write(LogLevel::kWarning, "job_folder_kept",
                  {{"job", job},
                   {"reason", "its files are not of the job that is opened"},
                   {"path", *kept}});
    } else if (!absl::IsNotFound(kept.status())) {
      return kept.status();
    }
  }
  return std::make_shared<JobFiles>(dir_.get(), job);
}

std::shared_ptr<JobFiles> JobStore::NoFiles(const std::string& job) const {
  return std::make_shared<JobFiles>(nullptr, job);
}

absl::Status JobStore::Discard(const std::string& removed) const {
  return removed.empty() ? absl::OkStatus() : dir_->Remove(removed);
}

absl::Status JobStore::Keep(const std::string& name,
                            const std::string& reason) const {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string kept, dir_->Keep(name));
  log_->Write(LogLevel::kError, "state_damaged",
              {{"file", name}, {"error", reason}, {"kept_as", kept}});
  return absl::OkStatus();
}

absl::Status JobStore::LoadBatches(const std::string& id,
                                   Restored* restored) const {
  const std::string folder = AttemptFolder(id, restored->attempt, "batches");
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            dir_->List(folder));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    const absl::StatusOr<std::string> bytes = dir_->Read(path);
    v1::StoredBatch batch;
    std::string fault;
    if (absl::IsDataLoss(bytes.status())) {
      fault = std::string(bytes.status().message());
    } else if (!bytes.ok()) {
      return bytes.status();
    } else if (!batch.ParseFromString(*bytes)) {
      fault = "it holds no batch";
    } else if (BatchFileName(batch.request()) != path) {
      fault = absl::StrCat("its content is that of ",
                           BatchFileName(batch.request()));
    } else if (batch.has_job() &&
               (batch.job().high() != restored->job.request().high() ||
                batch.job().low() != restored->job.request().low())) {
      fault = "it is of another job of that id";
    }
    if (fault.empty()) {
      restored->batches.push_back(std::move(batch));
    } else {
      PIPELOOM_RETURN_IF_ERROR(Keep(path, fault));
    }
  }
  return absl::OkStatus();
}

absl::Status JobStore::LoadPlanNames(const std::string& id,
                                     Restored* restored) const {
  const std::string folder = AttemptFolder(id, restored->attempt, "plans");
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            dir_->List(folder));
  for (const std::string& name : names) {
    PlanName plan;
    if (ParsePlanFileName(name, &plan.step, &plan.replica)) {
      restored->plans.push_back(plan);
    } else {
      PIPELOOM_RETURN_IF_ERROR(
          Keep(absl::StrCat(folder, "/", name), "it is not a plan's name"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> JobStore::LoadJob(const std::string& id,
                                       Restored* restored) const {
  const std::string folder = JobFolder(id);
  const auto left_out = [&](const std::string& reason) {
    log_->Write(LogLevel::kError, "job_not_restored",
                {{"job", id},
                 {"error", reason},
                 {"kept_as", absl::StrCat("jobs/", id)}});
    return false;
  };
  if (!IsJobId(id) || !dir_->IsFolder(folder)) {
    return left_out("it is not a job's folder");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            dir_->List(folder));
  if (std::find(names.begin(), names.end(), "job") == names.end()) {
    // A crash while the job was opened leaves an empty folder.
    if (names.empty()) {
      PIPELOOM_RETURN_IF_ERROR(dir_->Remove(folder));
      return false;
    }
    return left_out("it has no file `job`");
  }
  const absl::StatusOr<std::string> bytes = dir_->Read(JobFileName(id));
  if (absl::IsDataLoss(bytes.status())) {
    return left_out(std::string(bytes.status().message()));
  }
  PIPELOOM_RETURN_IF_ERROR(bytes.status());
  if (!restored->job.ParseFromString(*bytes)) {
    return left_out("its file `job` holds no job");
  }
  if (restored->job.job_id() != id) {
    return left_out(absl::StrCat("the folder was renamed: it holds job ",
                                 restored->job.job_id()));
  }
  restored->attempt = restored->job.attempt();
  std::vector<int64_t> attempts = {0, restored->attempt};
  for (const std::string& name : names) {
    absl::string_view number = name;
    int64_t attempt = 0;
    if (absl::ConsumePrefix(&number, "attempt-") &&
        absl::SimpleAtoi(number, &attempt) && attempt > 0) {
      attempts.push_back(attempt);
      restored->attempt = std::max(restored->attempt, attempt);
    }
  }
  restored->files = std::make_shared<JobFiles>(dir_.get(), id);
  restored->files->set_job_saved();
  for (const int64_t attempt : attempts) {
    if (attempt == restored->attempt) continue;
    PIPELOOM_RETURN_IF_ERROR(restored->files->RemoveAttempt(attempt));
  }
  PIPELOOM_RETURN_IF_ERROR(LoadBatches(id, restored));
  PIPELOOM_RETURN_IF_ERROR(LoadPlanNames(id, restored));
  return true;
}

absl::StatusOr<std::vector<JobStore::Restored>> JobStore::Load() const {
  std::vector<Restored> all;
  if (!enabled()) return all;
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                            dir_->List("jobs"));
  for (const std::string& id : ids) {
    Restored restored;
    PIPELOOM_ASSIGN_OR_RETURN(const bool served, LoadJob(id, &restored));
    if (served) all.push_back(std::move(restored));
  }
  return all;
}

}  // namespace pipeloom::service
