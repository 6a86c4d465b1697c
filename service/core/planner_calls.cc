// Calls that wait for plans.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/core/planner_core.h"
#include "service/jobs/job_errors.h"

namespace pipeloom::service {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

PlannerCore::Due PlannerCore::TakeCalls(const PlanKey& key,
                                        PlanOrError outcome) {
  Due due{.calls = calls_.Take(key), .outcome = std::move(outcome)};
  Job* job = table_.Find(key.job);
  for (const WaitingCall& call : due.calls) {
    desk_->queue().Leave(key);
    if (due.outcome.ok() && job != nullptr) {
      JobTable::NoteFetch(key, call.rank, job);
    }
  }
  drained_.NotifyAll();
  return due;
}

PlanOrError PlannerCore::Look(const PlanKey& key, int32_t rank, bool* on_disk) {
  Job* found = table_.Find(key.job);
  if (found == nullptr) return NoJob(key.job);
  Job& job = *found;
  job.used = options_.now();
  const ParallelLayout& layout = job.served->spec().parallel;
  if (key.replica < 0 || key.replica >= layout.dp) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "replica is %d; it must be in [0, %d)", key.replica, layout.dp));
  }
  if (key.step < 0 || key.step > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "step is %d; it must be in [0, %d]", key.step, kMaxSteps));
  }
  if (key.attempt < 0 || key.attempt > kMaxAttempts) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "attempt is %d; it must be in [0, %d]", key.attempt, kMaxAttempts));
  }
  if (rank >= layout.pp) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank is %d; it must be in [0, %d)", rank, layout.pp));
  }
  if (key.attempt < job.attempt) {
    return OldAttempt(key.job, key.attempt, job.attempt);
  }
  if (key.attempt == job.attempt) {
    if (table_.IsForgotten(job, key.step)) {
      return absl::NotFoundError(
          absl::StrCat(NameOf(key),
                       " is not kept any more; a training that goes back sends "
                       "a larger attempt than ",
                       job.attempt));
    }
    if (const Outcome* outcome = table_.FindOutcome(job, key)) {
      if (const auto* ready = std::get_if<PlanPtr>(outcome)) {
        JobTable::NoteFetch(key, rank, &job);
        return *ready;
      }
      if (const auto* error = std::get_if<absl::Status>(outcome)) {
        return *error;
      }
      *on_disk = true;
    }
  }
  if (draining_) return absl::UnavailableError("the service is going down");
  const int32_t waiting = calls_.size();
  const int32_t of_job = calls_.size(key.job);
  if (waiting >= options_.max_waiting ||
      of_job >= (3 * options_.max_waiting + 3) / 4) {
    return Busy(waiting >= options_.max_waiting
                    ? absl::StrFormat("%d calls wait, as many as may", waiting)
                    : absl::StrFormat("%d calls wait for job %s, as many as "
                                      "may for one job",
                                      of_job, key.job),
                100);
  }
  return PlanPtr();
}

PlannerCore::Clock::time_point PlannerCore::HurryAt(
    const Job& job, Clock::time_point now, Clock::time_point deadline) {
  // Leave time to plan, to write and to answer. A search takes longer to stop
  // on a slow machine, so add a part of a long wait.
  const nanoseconds patience = std::clamp<nanoseconds>(
      (deadline - now) / 5, nanoseconds(0), std::chrono::seconds(1));
  const nanoseconds lead =
      std::clamp<nanoseconds>(job.least_time * 2 + milliseconds(5) + patience,
                              milliseconds(10), std::chrono::seconds(5));
  return deadline - lead;
}

int64_t PlannerCore::Await(const PlanKey& key, int32_t rank,
                           Clock::time_point deadline,
                           std::function<void(PlanOrError)> done) {
  PlanOrError outcome = absl::UnknownError("");
  int64_t number = 0;
  Clock::time_point hurry_at{};
  const Clock::time_point now = Clock::now();
  {
    const MutexLock lock(&mutex_);
    bool on_disk = false;
    outcome = Look(key, rank, &on_disk);
    if (outcome.ok() && *outcome == nullptr) {
      hurry_at = HurryAt(*table_.Find(key.job), now, deadline);
      number = calls_.Add({.key = key,
                           .rank = rank,
                           .hurry_at = hurry_at,
                           .done = std::move(done)});
      desk_->queue().Await(key);
      if (on_disk && loading_.insert(key).second) {
        loads_.Post([this, key] { Load(key); });
      }
    }
  }
  if (number == 0) {
    done(std::move(outcome));
    return 0;
  }
  if (hurry_at <= now) {
    desk_->queue().Hurry(key);
  } else {
    timer_.At(hurry_at, [this, number, key] {
      {
        const MutexLock lock(&mutex_);
        if (!calls_.Contains(number)) return;
      }
      desk_->queue().Hurry(key);
    });
  }
  timer_.At(deadline, [this, number] {
    const std::optional<WaitingCall> late = TakeCall(number);
    if (!late.has_value()) return;
    ++metrics_->waits_timed_out;
    late->done(absl::DeadlineExceededError(
        absl::StrCat(NameOf(late->key), " was not ready in time")));
  });
  return number;
}

std::optional<WaitingCall> PlannerCore::TakeCall(int64_t number) {
  const MutexLock lock(&mutex_);
  std::optional<WaitingCall> call = calls_.Take(number);
  if (!call.has_value()) return std::nullopt;
  if (!draining_ && table_.NoteLate(call->key)) {
    const Job& job = *table_.Find(call->key.job);
    log_->Write(
        LogLevel::kWarning, "plan_late",
        {{"job", call->key.job},
         {"step", call->key.step},
         {"search_time_percent", static_cast<int64_t>(100 * job.pace.part())}});
  }
  desk_->queue().Leave(call->key);
  drained_.NotifyAll();
  return call;
}

bool PlannerCore::CancelAwait(int64_t id) { return TakeCall(id).has_value(); }

std::vector<PlannerCore::Due> PlannerCore::TakeLateCalls(const std::string& id,
                                                         bool new_attempt) {
  const Job& job = *table_.Find(id);
  const int64_t last = new_attempt ? std::numeric_limits<int64_t>::max()
                                   : table_.NewestDropped(job);
  std::vector<Due> due;
  for (const PlanKey& key : calls_.Keys(id, last)) {
    if (key.attempt < job.attempt) {
      due.push_back(TakeCalls(key, OldAttempt(id, key.attempt, job.attempt)));
    } else if (key.attempt == job.attempt &&
               key.step <= table_.NewestDropped(job)) {
      due.push_back(TakeCalls(key, absl::NotFoundError(absl::StrCat(
                                       NameOf(key), " is not kept any more"))));
    }
  }
  return due;
}

void PlannerCore::Load(const PlanKey& key) {
  std::shared_ptr<const StepBatch> batch;
  std::shared_ptr<JobFiles> files;
  Fingerprint checksum;
  {
    const MutexLock lock(&mutex_);
    batch = table_.FindOnDisk(key, &checksum);
    // Whoever closed the job or gave up the step has answered the calls.
    if (batch == nullptr) {
      loading_.erase(key);
      return;
    }
    files = table_.Find(key.job)->files;
  }
  absl::StatusOr<ReadyPlan> read =
      files->LoadPlan(OriginOf(*batch), key.step, key.replica);
  if (read.ok() && read->checksum != checksum) {
    read = absl::DataLossError("its checksum is another");
  }
  PlanOrError outcome = absl::UnknownError("");
  if (read.ok()) {
    MakeShares(&*read);
    outcome = std::make_shared<const ReadyPlan>(*std::move(read));
    ++metrics_->plans_restored;
  } else {
    store_->NoteError("plan", read.status());
    outcome = absl::DataLossError(absl::StrCat(
        NameOf(key),
        " cannot be read from disk again: ", read.status().message()));
  }
  Gone gone;
  std::vector<Due> due;
  {
    const MutexLock lock(&mutex_);
    loading_.erase(key);
    if (Step* step = table_.FindStep(key, batch)) {
      if (outcome.ok()) {
        table_.SetOutcome(key.replica, *outcome, table_.Find(key.job), step);
      }
      due.push_back(TakeCalls(key, std::move(outcome)));
      table_.EvictToLimit(calls_, &gone);
    }
  }
  Finish(gone, std::move(due));
}

}  // namespace pipeloom::service
