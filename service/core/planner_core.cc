#include "service/core/planner_core.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "service/core/core_errors.h"
#include "service/os/thread_priority.h"

namespace pipeloom::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

int64_t Count(nanoseconds time) { return time.count(); }

v1::StoredBatch ToStored(const v1::SubmitBatchRequest& request,
                         const CostEpoch& epoch) {
  v1::StoredBatch stored;
  *stored.mutable_request() = request;
  for (const emulator::PassFactors& f : epoch.factors) {
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
      cache_(options_.cache_bytes) {}

absl::StatusOr<std::unique_ptr<PlannerCore>> PlannerCore::Create(
    CoreOptions options, Log* log, Metrics* metrics) {
  std::unique_ptr<PlannerCore> core(
      new PlannerCore(std::move(options), log, metrics));
  PIPELOOM_ASSIGN_OR_RETURN(core->state_,
                            CoreState::Open(core->options_.state_dir, log));
  core->Restore();
  core->Start();
  return core;
}

void PlannerCore::Start() {
  const auto work = [this](planner::PlanAhead::Lane lane) {
    workers_.emplace_back([this, lane](const std::stop_token& stop) {
      // Hurried plans have priority over searches.
      MakeWayForServing(lane == planner::PlanAhead::Lane::kHurried
                            ? Background::kRequests
                            : Background::kSearch);
      while (ahead_.RunNext(lane, stop)) {
      }
    });
  };
  for (int32_t t = 0; t < options_.threads; ++t) {
    work(planner::PlanAhead::Lane::kAll);
  }
  work(planner::PlanAhead::Lane::kHurried);
}

PlannerCore::~PlannerCore() {
  std::vector<std::function<void(PlanOrError)>> left;
  std::vector<std::string> jobs;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    for (auto& [id, waiter] : waiters_) left.push_back(std::move(waiter.done));
    waiters_.clear();
    waiting_.clear();
    for (const auto& [id, job] : jobs_) jobs.push_back(id);
  }
  ahead_.Close();
  for (std::jthread& worker : workers_) worker.request_stop();
  for (const std::string& id : jobs) ahead_.Cancel(id);
  workers_.clear();
  for (const auto& done : left) {
    done(absl::UnavailableError("the service is going down"));
  }
}

absl::Status PlannerCore::RefuseIfFull(int32_t plans, std::vector<Step>* gone) {
  if (draining_) return absl::UnavailableError("the service is going down");
  const int32_t queued = ahead_.queued();
  if (queued + plans > options_.max_queued) {
    return Busy(absl::StrFormat("%d plans wait; at most %d may", queued,
                                options_.max_queued),
                500);
  }
  while (plan_bytes_ > options_.plan_bytes) {
    if (!EvictOldest(gone)) {
      return Busy(absl::StrFormat("plans that nobody fetched yet take %s of %s",
                                  FormatBytes(plan_bytes_),
                                  FormatBytes(options_.plan_bytes)),
                  1000);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SubmitBatchResponse> PlannerCore::Submit(
    const v1::SubmitBatchRequest& request) {
  std::shared_ptr<const ServedJob> served;
  {
    std::vector<Step> evicted;
    const std::lock_guard lock(mutex_);
    const auto job = jobs_.find(request.job_id());
    if (job == jobs_.end()) return NoJob(request.job_id());
    served = job->second.served;
    const int32_t all = served->spec().parallel.dp;
    PIPELOOM_RETURN_IF_ERROR(
        RefuseIfFull(request.has_replica() ? 1 : all, &evicted));
  }
  PIPELOOM_ASSIGN_OR_RETURN(StepBatch packed,
                            MakeStepBatch(*served, request, options_.batch));
  const std::vector<int32_t> replicas =
      ReplicasOf(packed, served->spec().parallel.dp);
  for (const int32_t replica : replicas) {
    PIPELOOM_ASSIGN_OR_RETURN(const int64_t tasks,
                              CountTasks(*served, packed, replica));
    if (tasks > options_.max_tasks) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "batch makes a plan of up to %d tasks for replica %d; at most %d are "
          "planned",
          tasks, replica, options_.max_tasks));
    }
  }
  auto batch = std::make_shared<StepBatch>(std::move(packed));
  std::vector<std::pair<int64_t, Step>> gone;  // Freed without the lock.
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(request.job_id());
    if (found == jobs_.end()) return NoJob(request.job_id());
    Job& job = found->second;
    if (batch->step + options_.keep_steps <= job.newest &&
        !job.steps.contains(batch->step)) {
      return absl::NotFoundError(absl::StrFormat(
          "step is %d; step %d is submitted, and %d steps behind it are kept",
          batch->step, job.newest, options_.keep_steps));
    }
    Step& step = job.steps[batch->step];
    if (const auto old = step.batches.find(batch->replica);
        old != step.batches.end()) {
      if (old->second->content != batch->content) {
        return absl::AlreadyExistsError(absl::StrFormat(
            "batch is another than the one submitted before for step %d",
            batch->step));
      }
      v1::SubmitBatchResponse response;
      response.set_existed(true);
      response.set_queued(ahead_.queued());
      return response;
    }
    if (!step.batches.empty() &&
        (batch->replica < 0) != (step.batches.begin()->first < 0)) {
      return absl::AlreadyExistsError(absl::StrFormat(
          "replica is %s, but step %d was submitted %s",
          batch->replica < 0 ? "absent" : "set", batch->step,
          batch->replica < 0 ? "by replica" : "for all replicas"));
    }
    if (step.epoch == nullptr) step.epoch = job.epoch;
    batch->epoch = step.epoch;
    step.batches[batch->replica] = batch;
    job.newest = std::max(job.newest, batch->step);
    Forget(request.job_id(), &job, &gone);
    RefuseLateWaiters(request.job_id(), job.newest);
  }
  if (state_->enabled()) {
    const absl::Status saved = state_->Save(ToStored(request, *batch->epoch));
    if (!saved.ok()) StateError("batch", saved);
    for (const auto& [step, content] : gone) {
      state_->RemoveStep(request.job_id(), step, served->spec().parallel.dp);
    }
  }
  v1::SubmitBatchResponse response;
  response.set_queued(ahead_.queued());
  for (const int32_t replica : replicas) Enqueue(served, batch, replica);
  return response;
}

void PlannerCore::Enqueue(const std::shared_ptr<const ServedJob>& job,
                          const std::shared_ptr<const StepBatch>& batch,
                          int32_t replica) {
  const planner::PlanKey key{job->id(), batch->step, replica};
  const Clock::time_point now = Clock::now();
  const auto submit = [&] {
    planner::PlanAhead::Work work;
    work.run = [this, job, batch, replica, now](const std::stop_token& stop) {
      MakePlan(*job, batch, replica, now, stop);
    };
    work.cost = job->spec().search.deadline;
    return ahead_.Submit(key, std::move(work));
  };
  // A job of this name that was closed may still be planning the step; it has
  // been asked to stop.
  while (!submit()) {
    {
      const std::lock_guard lock(mutex_);
      if (draining_ || !jobs_.contains(key.job)) return;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  // A call may have waited for this plan for so long that there is no time to
  // search.
  bool hurry = false;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = waiting_.equal_range(key);
    for (auto it = begin; it != end; ++it) {
      hurry |= waiters_.at(it->second).hurry_at <= now;
    }
  }
  if (hurry) ahead_.Hurry(key);
}

void PlannerCore::MakePlan(const ServedJob& job,
                           const std::shared_ptr<const StepBatch>& submission,
                           int32_t replica, Clock::time_point submitted,
                           const std::stop_token& stop) {
  const StepBatch& batch = *submission;
  const Clock::time_point begin = Clock::now();
  const bool hurried = stop.stop_requested();
  const planner::PlanKey key{job.id(), batch.step, replica};
  const auto over = [&] {
    const std::lock_guard lock(mutex_);
    return FindStep(key, submission) == nullptr;
  };
  if (over()) return;
  const int32_t busy = std::max(1, ahead_.running() + ahead_.queued());
  const int32_t threads = std::max(1, options_.threads / busy);
  absl::StatusOr<ReadyPlan> ready =
      MakeReadyPlan(job, batch, replica, threads, stop, &cache_);
  const Clock::time_point end = Clock::now();
  if (over()) return;
  if (!ready.ok()) {
    ++metrics_->plans_failed;
    if (absl::IsInternal(ready.status())) ++metrics_->plans_refused;
    log_->Write(LogLevel::kError, "plan_failed",
                {{"job", job.id()},
                 {"step", batch.step},
                 {"replica", int64_t{replica}},
                 {"error", ready.status().ToString()}});
    v1::PlanStatistics statistics;
    statistics.set_job_id(job.id());
    statistics.set_step(batch.step);
    statistics.set_replica(replica);
    statistics.set_error(std::string(ready.status().message()));
    PublishSoon(key, submission, ready.status(), statistics);
    return;
  }
  v1::PlanStatistics& s = ready->statistics;
  s.set_queued_ns(Count(begin - submitted));
  ready->durable = true;
  if (const absl::Status saved = state_->Save(*ready); !saved.ok()) {
    ready->durable = false;
    if (state_->enabled()) StateError("plan", saved);
  }
  s.set_latency_ns(Count(Clock::now() - submitted));
  ++metrics_->plans;
  metrics_->evaluations += s.evaluations();
  if (s.from_similar()) ++metrics_->from_similar;
  if (s.quality() == v1::PLAN_QUALITY_BEST_SO_FAR) {
    ++metrics_->plans_best_so_far;
  }
  if (s.lower_bound_ns() > 0) {
    metrics_->gap_ppm_sum += (s.step_time_ns() - s.lower_bound_ns()) *
                             1'000'000 / s.lower_bound_ns();
  }
  metrics_->queued.Add(s.queued_ns());
  metrics_->search.Add(Count(end - begin));
  metrics_->latency.Add(s.latency_ns());
  log_->Write(LogLevel::kDebug, "plan",
              {{"job", job.id()},
               {"step", batch.step},
               {"replica", int64_t{replica}},
               {"quality", v1::PlanQuality_Name(s.quality())},
               {"step_time_ns", s.step_time_ns()},
               {"lower_bound_ns", s.lower_bound_ns()},
               {"evaluations", s.evaluations()},
               {"latency_ns", s.latency_ns()}});
  if (hurried) {
    const std::lock_guard lock(mutex_);
    if (const auto found = jobs_.find(job.id()); found != jobs_.end()) {
      nanoseconds& least = found->second.least_time;
      least = std::max((3 * least + (Clock::now() - begin)) / 4,
                       nanoseconds(milliseconds(1)));
    }
  }
  const v1::PlanStatistics statistics = s;
  // Made before the plan is published, so that answering threads only pass on
  // bytes.
  MakeShares(&*ready);
  PublishSoon(key, submission,
              std::make_shared<const ReadyPlan>(*std::move(ready)), statistics);
}

PlannerCore::Step* PlannerCore::FindStep(
    const planner::PlanKey& key,
    const std::shared_ptr<const StepBatch>& submission) {
  // The job may have been closed, or the step given up, and the job opened anew
  // with another batch.
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end()) return nullptr;
  const auto step = job->second.steps.find(key.step);
  if (step == job->second.steps.end()) return nullptr;
  const auto batch = step->second.batches.find(submission->replica);
  const bool mine =
      batch != step->second.batches.end() && batch->second == submission;
  return mine ? &step->second : nullptr;
}

void PlannerCore::PublishSoon(
    const planner::PlanKey& key,
    const std::shared_ptr<const StepBatch>& submission, const Outcome& outcome,
    const v1::PlanStatistics& statistics) {
  answers_.Post([=, this] { Publish(key, submission, outcome, statistics); });
}

void PlannerCore::Publish(const planner::PlanKey& key,
                          const std::shared_ptr<const StepBatch>& submission,
                          const Outcome& outcome,
                          const v1::PlanStatistics& statistics) {
  Due due;
  std::vector<std::function<void(const v1::PlanStatistics&)>> listeners;
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    if (Step* step = FindStep(key, submission)) {
      if (const auto* plan =
              std::get_if<std::shared_ptr<const ReadyPlan>>(&outcome)) {
        plan_bytes_ += (*plan)->size;
        due.outcome = *plan;
      } else {
        due.outcome = std::get<absl::Status>(outcome);
      }
      step->plans[key.replica] = outcome;
      due.waiters = TakeWaiters(key);
      Job& job = jobs_.at(key.job);
      if (!due.waiters.empty()) job.fetched = std::max(job.fetched, key.step);
    } else {
      const auto job = jobs_.find(key.job);
      gone = job == jobs_.end() || !job->second.steps.contains(key.step);
    }
    for (const auto& [id, listener] : listeners_) listeners.push_back(listener);
  }
  // The job was closed, or the step given up, while it was planned.
  if (gone) state_->RemoveStep(key.job, key.step, key.replica + 1);
  for (const auto& done : due.waiters) done(due.outcome);
  for (const auto& listener : listeners) listener(statistics);
}

std::vector<std::function<void(PlanOrError)>> PlannerCore::TakeWaiters(
    const planner::PlanKey& key) {
  std::vector<std::function<void(PlanOrError)>> taken;
  const auto [begin, end] = waiting_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const auto waiter = waiters_.find(it->second);
    taken.push_back(std::move(waiter->second.done));
    waiters_.erase(waiter);
    ahead_.Leave(key);
  }
  waiting_.erase(begin, end);
  if (waiters_.empty()) waiters_left_.notify_all();
  return taken;
}

int64_t PlannerCore::Await(const planner::PlanKey& key, int32_t rank,
                           Clock::time_point deadline,
                           std::function<void(PlanOrError)> done) {
  PlanOrError outcome = absl::UnknownError("");
  int64_t id = 0;
  Clock::time_point hurry_at{};
  const Clock::time_point now = Clock::now();
  [&] {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(key.job);
    if (found == jobs_.end()) {
      outcome = NoJob(key.job);
      return;
    }
    Job& job = found->second;
    const ParallelLayout& layout = job.served->spec().parallel;
    if (key.replica < 0 || key.replica >= layout.dp) {
      outcome = absl::InvalidArgumentError(absl::StrFormat(
          "replica is %d; it must be in [0, %d)", key.replica, layout.dp));
      return;
    }
    if (rank >= layout.pp || key.step < 0) {
      outcome = absl::InvalidArgumentError(
          key.step < 0
              ? absl::StrFormat("step is %d; it must be >= 0", key.step)
              : absl::StrFormat("rank is %d; it must be in [0, %d)", rank,
                                layout.pp));
      return;
    }
    const auto step = job.steps.find(key.step);
    if (step == job.steps.end() && key.step <= job.newest &&
        key.step + options_.keep_steps <= job.newest) {
      outcome = absl::NotFoundError(
          absl::StrCat(NameOf(key), " is not kept any more"));
      return;
    }
    if (step != job.steps.end()) {
      const auto plan = step->second.plans.find(key.replica);
      if (plan != step->second.plans.end()) {
        if (const auto* ready =
                std::get_if<std::shared_ptr<const ReadyPlan>>(&plan->second)) {
          outcome = *ready;
          job.fetched = std::max(job.fetched, key.step);
        } else {
          outcome = std::get<absl::Status>(plan->second);
        }
        return;
      }
    }
    if (draining_) {
      outcome = absl::UnavailableError("the service is going down");
      return;
    }
    if (static_cast<int32_t>(waiters_.size()) >= options_.max_waiting) {
      outcome = Busy(
          absl::StrFormat("%d calls wait, as many as may", waiters_.size()),
          100);
      return;
    }
    id = next_id_++;
    // Leave time to plan, to write and to answer. A search takes longer to stop
    // on a slow machine, so add a part of a long wait.
    const nanoseconds patience = std::clamp<nanoseconds>(
        (deadline - now) / 16, nanoseconds(0), milliseconds(250));
    const nanoseconds lead =
        std::clamp<nanoseconds>(job.least_time * 2 + milliseconds(5) + patience,
                                milliseconds(10), std::chrono::seconds(5));
    hurry_at = deadline - lead;
    waiters_.emplace(id, Waiter{key, hurry_at, std::move(done)});
    waiting_.emplace(key, id);
    ahead_.Await(key);
  }();
  if (id == 0) {
    done(std::move(outcome));
    return 0;
  }
  if (hurry_at <= now) {
    ahead_.Hurry(key);
  } else {
    timer_.At(hurry_at, [this, id, key] {
      {
        const std::lock_guard lock(mutex_);
        if (!waiters_.contains(id)) return;
      }
      ahead_.Hurry(key);
    });
  }
  timer_.At(deadline, [this, id, key] {
    const std::function<void(PlanOrError)> late = TakeWaiter(id);
    if (!late) return;
    ++metrics_->waits_timed_out;
    late(absl::DeadlineExceededError(
        absl::StrCat(NameOf(key), " was not ready in time")));
  });
  return id;
}

std::function<void(PlanOrError)> PlannerCore::TakeWaiter(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto waiter = waiters_.find(id);
  if (waiter == waiters_.end()) return nullptr;
  const auto [begin, end] = waiting_.equal_range(waiter->second.key);
  for (auto it = begin; it != end; ++it) {
    if (it->second == id) {
      waiting_.erase(it);
      ahead_.Leave(waiter->second.key);
      break;
    }
  }
  std::function<void(PlanOrError)> done = std::move(waiter->second.done);
  waiters_.erase(waiter);
  if (waiters_.empty()) waiters_left_.notify_all();
  return done;
}

bool PlannerCore::CancelAwait(int64_t id) { return TakeWaiter(id) != nullptr; }

void PlannerCore::Forget(const std::string& id, Job* job,
                         std::vector<std::pair<int64_t, Step>>* gone) {
  while (!job->steps.empty() &&
         job->steps.begin()->first + options_.keep_steps <= job->newest) {
    const auto oldest = job->steps.begin();
    for (const auto& [replica, plan] : oldest->second.plans) {
      if (const auto* ready =
              std::get_if<std::shared_ptr<const ReadyPlan>>(&plan)) {
        plan_bytes_ -= (*ready)->size;
      }
    }
    gone->emplace_back(oldest->first, std::move(oldest->second));
    job->steps.erase(oldest);
  }
  if (!gone->empty()) {
    log_->Write(LogLevel::kDebug, "steps_forgotten",
                {{"job", id}, {"up_to", gone->back().first}});
  }
}

void PlannerCore::RefuseLateWaiters(const std::string& id, int64_t newest) {
  std::vector<planner::PlanKey> late;
  for (auto it = waiting_.lower_bound({id, 0, 0});
       it != waiting_.end() && it->first.job == id &&
       it->first.step + options_.keep_steps <= newest;
       ++it) {
    if (late.empty() || late.back() != it->first) late.push_back(it->first);
  }
  for (const planner::PlanKey& key : late) {
    answers_.Post([key, waiters = TakeWaiters(key)] {
      for (const auto& done : waiters) {
        done(absl::NotFoundError(
            absl::StrCat(NameOf(key), " is not kept any more")));
      }
    });
  }
}

bool PlannerCore::EvictOldest(std::vector<Step>* gone) {
  for (auto& [id, job] : jobs_) {
    if (job.steps.empty() || job.steps.begin()->first >= job.fetched) continue;
    const auto oldest = job.steps.begin();
    for (const auto& [replica, plan] : oldest->second.plans) {
      if (const auto* ready =
              std::get_if<std::shared_ptr<const ReadyPlan>>(&plan)) {
        plan_bytes_ -= (*ready)->size;
      }
    }
    state_->RemoveStep(id, oldest->first, job.served->spec().parallel.dp);
    gone->push_back(std::move(oldest->second));
    job.steps.erase(oldest);
    return true;
  }
  return false;
}

int64_t PlannerCore::Subscribe(
    std::function<void(const v1::PlanStatistics&)> listener) {
  const std::lock_guard lock(mutex_);
  const int64_t id = next_id_++;
  listeners_.emplace(id, std::move(listener));
  return id;
}

void PlannerCore::Unsubscribe(int64_t id) {
  const std::lock_guard lock(mutex_);
  listeners_.erase(id);
}

void PlannerCore::Drain(nanoseconds grace) {
  std::vector<planner::PlanKey> due;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    for (const auto& [key, id] : waiting_) due.push_back(key);
  }
  for (const planner::PlanKey& key : due) ahead_.Hurry(key);
  std::unique_lock lock(mutex_);
  waiters_left_.wait_for(lock, grace, [&] { return waiters_.empty(); });
}

Metrics::Gauges PlannerCore::gauges() const {
  Metrics::Gauges gauges;
  const planner::PlanCacheCounters cache = cache_.counters();
  gauges.queued = ahead_.queued();
  gauges.running = ahead_.running();
  gauges.hurried = ahead_.counters().hurried;
  gauges.cache_hits = cache.hits;
  gauges.cache_similar_hits = cache.similar_hits;
  gauges.cache_misses = cache.misses;
  gauges.cache_bytes = cache.size.count();
  const std::lock_guard lock(mutex_);
  gauges.jobs = static_cast<int64_t>(jobs_.size());
  gauges.waiting = static_cast<int64_t>(waiters_.size());
  gauges.plan_bytes = plan_bytes_.count();
  return gauges;
}

void PlannerCore::StateError(absl::string_view what,
                             const absl::Status& status) {
  ++metrics_->state_errors;
  log_->Write(LogLevel::kError, "state_error",
              {{"what", what}, {"error", status.ToString()}});
}

}  // namespace pipeloom::service
