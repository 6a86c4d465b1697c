// Submitting batches, and handing out their plans.
#include "service/core/planner_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "service/jobs/job_errors.h"

namespace pipeloom::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

v1::StoredBatch ToStored(const v1::SubmitBatchRequest& request,
                         const StepBatch& batch) {
  v1::StoredBatch stored;
  *stored.mutable_request() = request;
  stored.mutable_job()->set_high(batch.job.high);
  stored.mutable_job()->set_low(batch.job.low);
  for (const emulator::PassFactors& f : batch.epoch->factors) {
    v1::StoredCorrection& c = *stored.add_corrections();
    c.set_forward(f.forward);
    c.set_backward(f.backward);
    c.set_weight_grad(f.weight_grad);
  }
  return stored;
}

}  // namespace

PlannerCore::PlannerCore(CoreOptions options, Log* log, Metrics* metrics)
    : options_(std::move(options)),
      log_(log),
      metrics_(metrics),
      table_(options_) {}

absl::StatusOr<std::unique_ptr<PlannerCore>> PlannerCore::Create(
    CoreOptions options, Log* log, Metrics* metrics) {
  std::unique_ptr<PlannerCore> core(
      new PlannerCore(std::move(options), log, metrics));
  PIPELOOM_ASSIGN_OR_RETURN(
      core->store_, JobStore::Open(core->options_.state_dir, log, metrics));
  PlannerCore* const self = core.get();
  core->desk_ = std::make_unique<PlanDesk>(
      core->options_,
      PlanDesk::Owner{.wants =
                          [self](const PlanKey& key,
                                 const Submission& submission, bool cut_short) {
                            return self->Wants(key, submission, cut_short);
                          },
                      .part =
                          [self](const std::string& job) {
                            const MutexLock lock(&self->mutex_);
                            const Job* found = self->table_.Find(job);
                            return found == nullptr ? 1 : found->pace.part();
                          },
                      .take =
                          [self](DeskResult result) {
                            self->publisher_.Post(
                                [self, result = std::move(result)] {
                                  self->Publish(result);
                                });
                          }},
      core->store_.get(), &core->timer_, log, metrics);
  PIPELOOM_RETURN_IF_ERROR(core->Restore());
  core->desk_->Start();
  return core;
}

PlannerCore::~PlannerCore() {
  std::vector<WaitingCall> left;
  std::vector<std::string> jobs;
  {
    const MutexLock lock(&mutex_);
    draining_ = true;
    left = calls_.TakeAll();
    for (const auto& [id, job] : table_.jobs()) jobs.push_back(id);
  }
  if (desk_ != nullptr) desk_->End(jobs);
  for (const WaitingCall& call : left) {
    call.done(absl::UnavailableError("the service is going down"));
  }
}

absl::Status PlannerCore::RefuseIfFull(int32_t plans) const {
  if (draining_) return absl::UnavailableError("the service is going down");
  const int32_t queued = desk_->queue().queued();
  if (queued + plans > options_.max_queued) {
    return Busy(absl::StrFormat("%d plans wait; at most %d may", queued,
                                options_.max_queued),
                500);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitBatchResponse> PlannerCore::Submit(
    const v1::SubmitBatchRequest& request, std::string* note) {
  Submission submission;
  {
    const MutexLock lock(&mutex_);
    Job* job = table_.Find(request.job_id());
    if (job == nullptr) return NoJob(request.job_id());
    job->used = options_.now();
    submission.job = job->served;
    PIPELOOM_RETURN_IF_ERROR(
        RefuseIfFull(request.has_replica() ? 1 : job->replicas()));
  }
  const ServedJob& served = *submission.job;
  PIPELOOM_ASSIGN_OR_RETURN(StepBatch packed,
                            MakeStepBatch(served, request, options_.batch));
  const std::vector<int32_t> replicas =
      ReplicasOf(packed, served.spec().parallel.dp);
  std::vector<int64_t> tasks;  // Indexed as `replicas`.
  for (const int32_t replica : replicas) {
    PIPELOOM_ASSIGN_OR_RETURN(tasks.emplace_back(),
                              CountTasks(served, packed, replica));
    if (tasks.back() > options_.max_tasks) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "batch makes a plan of up to %d tasks for replica %d; at most %d are "
          "planned",
          tasks.back(), replica, options_.max_tasks));
    }
  }
  const std::string unused_media = packed.unused_media;
  PIPELOOM_ASSIGN_OR_RETURN(
      const bool existed,
      Accept(request.job_id(), tasks, std::move(packed), &submission));
  LogUnusedMedia(request.job_id(), unused_media);
  if (note != nullptr) *note = unused_media;
  v1::SubmitBatchResponse response;
  response.set_existed(existed);
  response.set_queued(desk_->queue().queued());
  if (existed) return response;
  if (store_->enabled()) {
    // Its file may be missing or old because the disk was full.
    bool job_saved = submission.files->job_saved();
    {
      const MutexLock lock(&mutex_);
      const Job* job = table_.Find(request.job_id());
      job_saved = job_saved && (job == nullptr || job->attempt_saved);
    }
    if (!job_saved) SaveJob(request.job_id());
    const absl::Status saved =
        submission.files->SaveBatch(ToStored(request, *submission.batch));
    submission.saved = saved.ok();
    store_->NoteError("batch", saved);
  }
  for (const int32_t replica : replicas) Enqueue(submission, replica);
  return response;
}

absl::StatusOr<bool> PlannerCore::Accept(const std::string& id,
                                         const std::vector<int64_t>& tasks,
                                         StepBatch packed,
                                         Submission* submission) {
  Gone gone;
  std::vector<Due> late;
  absl::StatusOr<bool> existed = false;
  {
    const MutexLock lock(&mutex_);
    const Job* before = table_.Find(id);
    const int64_t attempt = before == nullptr ? 0 : before->attempt;
    existed =
        table_.Accept(id, tasks, std::move(packed), calls_, submission, &gone);
    const Job* job = table_.Find(id);
    const bool new_attempt = job != nullptr && job->attempt != attempt;
    if (new_attempt) {
      desk_->queue().Cancel(id);
      log_->Write(LogLevel::kInfo, "attempt",
                  {{"job", id}, {"attempt", job->attempt}});
    }
    if (job != nullptr) late = TakeLateCalls(id, new_attempt);
  }
  Finish(gone, std::move(late));
  return existed;
}

void PlannerCore::LogUnusedMedia(const std::string& id,
                                 const std::string& note) {
  if (note.empty()) return;
  {
    const MutexLock lock(&mutex_);
    Job* job = table_.Find(id);
    if (job == nullptr || job->logged_media) return;
    job->logged_media = true;
  }
  log_->Write(LogLevel::kWarning, "unused_media",
              {{"job", id}, {"note", note}});
}

void PlannerCore::Enqueue(const Submission& submission, int32_t replica) {
  const StepBatch& batch = *submission.batch;
  const PlanKey key{submission.job->id(), batch.step, replica, batch.attempt};
  const Fingerprint search = SearchOf(*submission.job, batch, replica);
  // With the lock, so that a job that is closed leaves nothing in the queue.
  const MutexLock lock(&mutex_);
  if (draining_ || table_.FindStep(key, submission.batch) == nullptr) return;
  // A call may have waited for this plan for so long that there is no time to
  // search.
  desk_->Queue(submission, replica, search, calls_.IsUrgent(key, Clock::now()));
}

bool PlannerCore::Wants(const PlanKey& key, const Submission& submission,
                        bool cut_short) const {
  const MutexLock lock(&mutex_);
  // A search that only the service's end cut short is done again after a
  // restart.
  if (draining_ && cut_short && !calls_.Contains(key)) return false;
  return table_.HasStep(key, submission.batch);
}

void PlannerCore::Publish(const DeskResult& result) {
  const PlanKey& key = result.key;
  Due due;
  Gone gone;
  bool over = false;
  {
    const MutexLock lock(&mutex_);
    if (Step* step = table_.FindStep(key, result.submission.batch)) {
      Job& job = *table_.Find(key.job);
      if (result.hurried.has_value()) {
        job.least_time = std::max((3 * job.least_time + *result.hurried) / 4,
                                  nanoseconds(milliseconds(1)));
      }
      table_.SetOutcome(key.replica, result.outcome, &job, step);
      const auto* plan = std::get_if<PlanPtr>(&result.outcome);
      due = TakeCalls(key, plan != nullptr
                               ? PlanOrError(*plan)
                               : std::get<absl::Status>(result.outcome));
      table_.EvictToLimit(calls_, &gone);
    } else {
      // The step was given up while it was planned; it is never planned again,
      // so its file is of no use. After Close or a new attempt, this does
      // nothing.
      over = true;
    }
  }
  if (over) {
    store_->NoteError("plan", result.submission.files->RemoveStep(
                                  key.attempt, key.step, key.replica + 1));
  }
  for (const WaitingCall& call : due.calls) call.done(due.outcome);
  publisher_.Tell(result.statistics);
  Finish(gone);
}

void PlannerCore::Finish(const Gone& gone, std::vector<Due> due) {
  for (const Gone::Files& files : gone.files) {
    store_->NoteError("removal",
                      files.step < 0
                          ? files.files->RemoveAttempt(files.attempt)
                          : files.files->RemoveStep(files.attempt, files.step,
                                                    files.replicas));
  }
  for (Due& d : due) {
    publisher_.Answer(std::move(d.calls), std::move(d.outcome));
  }
}

int64_t PlannerCore::Subscribe(
    std::function<void(const v1::PlanStatistics&)> listener) {
  return publisher_.Subscribe(std::move(listener));
}

void PlannerCore::Unsubscribe(int64_t id) { publisher_.Unsubscribe(id); }

void PlannerCore::Drain(nanoseconds grace) {
  std::vector<PlanKey> due;
  std::vector<Due> in_vain;
  {
    const MutexLock lock(&mutex_);
    draining_ = true;
    for (const PlanKey& key : calls_.Keys()) {
      if (table_.HasBatch(key)) {
        due.push_back(key);
      } else {
        in_vain.push_back(TakeCalls(
            key, absl::UnavailableError("the service is going down")));
      }
    }
  }
  Finish({}, std::move(in_vain));
  for (const PlanKey& key : due) desk_->queue().Hurry(key);
  const MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return calls_.size() == 0;
  };
  drained_.WaitFor(&mutex_, grace, none);
}

v1::ListJobsResponse PlannerCore::List() const {
  v1::ListJobsResponse response;
  const MutexLock lock(&mutex_);
  const Clock::time_point now = options_.now();
  for (const auto& [id, job] : table_.jobs()) {
    v1::OpenJobInfo& info = *response.add_jobs();
    info.set_job_id(id);
    info.set_name(job.served->spec().name);
    info.set_attempt(job.attempt);
    info.set_newest_step(job.newest);
    info.set_num_ranks(job.served->spec().parallel.pp);
    info.set_num_replicas(job.replicas());
    info.set_queued(desk_->queue().queued(id));
    info.set_plan_bytes(job.plan_bytes.count());
    info.set_idle_us(
        std::chrono::duration_cast<std::chrono::microseconds>(now - job.used)
            .count());
    info.set_durable(job.files->job_saved());
    info.set_has_close_key(job.close_key != Fingerprint());
  }
  return response;
}

Metrics::Gauges PlannerCore::gauges() const {
  Metrics::Gauges gauges;
  const PlanCacheCounters cache = desk_->cache().counters();
  gauges.queued = desk_->queue().queued();
  gauges.running = desk_->queue().running();
  gauges.hurried = desk_->queue().counters().hurried;
  gauges.cache_hits = cache.hits;
  gauges.cache_similar_hits = cache.similar_hits;
  gauges.cache_misses = cache.misses;
  gauges.cache_bytes = cache.size.count();
  const MutexLock lock(&mutex_);
  gauges.jobs = static_cast<int64_t>(table_.jobs().size());
  gauges.waiting = static_cast<int64_t>(calls_.size());
  gauges.plan_bytes = table_.plan_bytes().count();
  return gauges;
}

}  // namespace pipeloom::service
