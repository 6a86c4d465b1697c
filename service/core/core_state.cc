#include "service/core/core_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

// Returns a file's name. Steps are padded, so that the order of names is the
// order of steps.
std::string NameOf(const std::string& job, absl::string_view kind, int64_t step,
                   const std::string& replica) {
  return absl::StrFormat("jobs/%s/%s/%016d.%s", job, kind, step, replica);
}

std::string JobName(const std::string& job) {
  return absl::StrCat("jobs/", job, "/job");
}

}  // namespace

bool IsJobId(const std::string& id) {
  return !id.empty() && id.size() <= 64 && id[0] != '.' &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  c == '.' || c == '_' || c == '-';
         });
}

absl::StatusOr<std::unique_ptr<CoreState>> CoreState::Open(
    const std::string& path, Log* log) {
  std::unique_ptr<CoreState> state(new CoreState(log));
  if (!path.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(state->dir_, StateDir::Open(path));
  }
  return state;
}

absl::Status CoreState::Save(const v1::StoredJob& job) const {
  if (!enabled()) return absl::FailedPreconditionError("no state folder");
  return dir_->Write(JobName(job.job_id()), job.SerializeAsString());
}

absl::Status CoreState::Save(const v1::StoredBatch& batch) const {
  if (!enabled()) return absl::FailedPreconditionError("no state folder");
  const v1::SubmitBatchRequest& r = batch.request();
  return dir_->Write(
      NameOf(r.job_id(), "batches", r.step(),
             r.has_replica() ? absl::StrCat(r.replica()) : "all"),
      batch.SerializeAsString());
}

absl::Status CoreState::Save(const ReadyPlan& plan) const {
  if (!enabled()) return absl::FailedPreconditionError("no state folder");
  return dir_->Write(NameOf(plan.job_id, "plans", plan.plan.step,
                            absl::StrCat(plan.plan.replica)),
                     ToStored(plan).SerializeAsString());
}

std::string CoreState::RemoveJob(const std::string& job) const {
  if (!enabled()) return "";
  return dir_->SetAside(absl::StrCat("jobs/", job));
}

void CoreState::Discard(const std::string& removed) const {
  if (!removed.empty()) dir_->Remove(removed);
}

void CoreState::RemoveStep(const std::string& job, int64_t step,
                           int32_t replicas) const {
  if (!enabled()) return;
  // Batches are removed first, so that after a crash no part of the step is
  // planned anew.
  dir_->Remove(NameOf(job, "batches", step, "all"));
  for (int32_t r = 0; r < replicas; ++r) {
    dir_->Remove(NameOf(job, "batches", step, absl::StrCat(r)));
    dir_->Remove(NameOf(job, "plans", step, absl::StrCat(r)));
  }
}

template <typename Message>
std::optional<Message> CoreState::ReadMessage(const std::string& name) const {
  absl::StatusOr<std::string> bytes = dir_->Read(name);
  Message message;
  if (bytes.ok() && message.ParseFromString(*bytes)) return message;
  log_->Write(LogLevel::kError, "state_damaged",
              {{"file", name}, {"error", bytes.status().ToString()}});
  dir_->Remove(name);
  return std::nullopt;
}

std::vector<CoreState::Restored> CoreState::Load() const {
  std::vector<Restored> all;
  if (!enabled()) return all;
  for (const std::string& id : dir_->List("jobs")) {
    const std::string folder = absl::StrCat("jobs/", id);
    // Without its job file, a folder is left from a crash while the job was
    // made or removed.
    const std::vector<std::string> names = dir_->List(folder);
    std::optional<v1::StoredJob> job;
    if (std::find(names.begin(), names.end(), "job") != names.end()) {
      job = ReadMessage<v1::StoredJob>(JobName(id));
    }
    if (!job.has_value() || job->job_id() != id) {
      dir_->Remove(folder);
      continue;
    }
    Restored restored;
    restored.job = *std::move(job);
    for (const std::string& name :
         dir_->List(absl::StrCat(folder, "/batches"))) {
      auto batch =
          ReadMessage<v1::StoredBatch>(absl::StrCat(folder, "/batches/", name));
      if (batch.has_value()) restored.batches.push_back(*std::move(batch));
    }
    for (const std::string& name : dir_->List(absl::StrCat(folder, "/plans"))) {
      const std::string path = absl::StrCat(folder, "/plans/", name);
      const auto stored = ReadMessage<v1::StoredPlan>(path);
      if (!stored.has_value()) continue;
      absl::StatusOr<ReadyPlan> plan = FromStored(*stored);
      if (plan.ok()) {
        restored.plans.push_back(*std::move(plan));
        continue;
      }
      log_->Write(LogLevel::kError, "plan_damaged",
                  {{"file", path}, {"error", plan.status().ToString()}});
      dir_->Remove(path);
    }
    all.push_back(std::move(restored));
  }
  return all;
}

}  // namespace pipeloom::service
