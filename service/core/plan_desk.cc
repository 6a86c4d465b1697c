#include "service/core/plan_desk.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/numeric.h"
#include "service/jobs/ready_plan.h"
#include "service/os/thread_priority.h"

namespace pipeloom::service {

using std::chrono::nanoseconds;

PlanDesk::PlanDesk(const Options& options, Owner owner, JobStore* store,
                   DeadlineTimer* timer, Log* log, Metrics* metrics)
    : options_(options),
      owner_(std::move(owner)),
      store_(store),
      timer_(timer),
      log_(log),
      metrics_(metrics),
      cache_(options.cache_bytes) {}

PlanDesk::~PlanDesk() { End({}); }

void PlanDesk::Start() {
  const auto work = [this](PlanAhead::Lane lane) {
    threads_.emplace_back([this, lane](const std::stop_token& stop) {
      // Hurried plans have priority over searches.
      MakeWayForServing(lane == PlanAhead::Lane::kHurried
                            ? Background::kRequests
                            : Background::kSearch);
      while (queue_.RunNext(lane, stop)) {
      }
    });
  };
  for (int32_t t = 0; t < options_.threads; ++t) work(PlanAhead::Lane::kAll);
  work(PlanAhead::Lane::kHurried);
}

void PlanDesk::End(const std::vector<std::string>& jobs) {
  queue_.Close();
  for (std::jthread& thread : threads_) thread.request_stop();
  for (const std::string& id : jobs) queue_.Cancel(id);
  threads_.clear();
}

Duration PlanDesk::CostOf(const ServedJob& job) const {
  return std::min<Duration>(job.spec().search.deadline, options_.max_search);
}

void PlanDesk::Queue(const Submission& submission, int32_t replica,
                     const Fingerprint& search, bool hurry) {
  const StepBatch& batch = *submission.batch;
  const PlanKey key{submission.job->id(), batch.step, replica, batch.attempt};
  const Clock::time_point now = Clock::now();
  PlanAhead::Work work;
  work.run = [this, key, submission, now](const std::stop_token& stop) {
    Make(key, submission, now, stop);
  };
  work.cost = CostOf(*submission.job);
  work.like = search;
  if (!queue_.Submit(key, std::move(work))) return;  // The service ends.
  if (hurry) queue_.Hurry(key);
  Watch(key, queue_.BegunBefore(key).value_or(0));
}

void PlanDesk::Watch(const PlanKey& key, int64_t begun) {
  timer_->At(Clock::now() + options_.patience, [this, key, begun] {
    const std::optional<int64_t> now = queue_.BegunBefore(key);
    if (!now.has_value()) return;
    if (*now == begun) queue_.MakeRoomFor(key);
    Watch(key, *now);
  });
}

absl::StatusOr<ReadyPlan> PlanDesk::FindOrMake(const PlanKey& key,
                                               const Submission& submission,
                                               const std::stop_token& stop) {
  const StepBatch& batch = *submission.batch;
  if (store_->enabled()) {
    // The batch may have been lost and sent again, or its plan's memory given
    // up. The plan stays the same.
    absl::StatusOr<ReadyPlan> known =
        submission.files->LoadPlan(OriginOf(batch), key.step, key.replica);
    if (known.ok()) {
      ++metrics_->plans_restored;
      queue_.Charge(key, kZero);
      return known;
    }
    if (absl::IsDataLoss(known.status()) ||
        absl::IsUnavailable(known.status())) {
      const auto kept =
          submission.files->KeepPlan(key.attempt, key.step, key.replica);
      log_->Write(LogLevel::kError, "plan_damaged",
                  {{"job", key.job},
                   {"error", known.status().message()},
                   {"kept_as", kept.ok() ? *kept : std::string("-")}});
    }
  }
  const int32_t busy = std::max(1, queue_.ready());
  const int32_t threads = std::max(1, options_.threads / busy);
  SearchEffort effort{.threads = threads,
                      .workers = options_.workers,
                      .most = options_.max_search,
                      .part = owner_.part(key.job)};
  queue_.Charge(key, Nanoseconds(std::llround(
                         Real(CostOf(*submission.job).count()) * effort.part)));
  absl::StatusOr<ReadyPlan> made =
      MakeReadyPlan(*submission.job, batch, key.replica, effort, stop, &cache_);
  if (made.ok()) {
    if (made->statistics.cache_hit()) {
      queue_.Charge(key, kZero);
    } else if (effort.part < 1) {
      ++metrics_->searches_shortened;
    }
    // The plan of a search that was cut short serves those who have no time.
    queue_.SetFree(
        key, made->quality == v1::PLAN_QUALITY_BEST_SO_FAR && effort.part == 1
                 ? PlanAhead::Waiters::kHurried
                 : PlanAhead::Waiters::kAll);
  }
  return made;
}

void PlanDesk::Count(const ReadyPlan& plan, nanoseconds search) {
  const v1::PlanStatistics& s = plan.statistics;
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
  metrics_->search.Add(search.count());
  metrics_->latency.Add(s.latency_ns());
  log_->Write(LogLevel::kDebug, "plan",
              {{"job", plan.job_id},
               {"step", plan.plan.step},
               {"replica", int64_t{plan.plan.replica}},
               {"quality", v1::PlanQuality_Name(s.quality())},
               {"step_time_ns", s.step_time_ns()},
               {"lower_bound_ns", s.lower_bound_ns()},
               {"evaluations", s.evaluations()},
               {"latency_ns", s.latency_ns()}});
}

void PlanDesk::Fail(const PlanKey& key, const Submission& submission,
                    const absl::Status& error) {
  ++metrics_->plans_failed;
  if (absl::IsInternal(error)) ++metrics_->plans_refused;
  log_->Write(LogLevel::kError, "plan_failed",
              {{"job", key.job},
               {"step", key.step},
               {"replica", int64_t{key.replica}},
               {"error", error.ToString()}});
  v1::PlanStatistics statistics;
  statistics.set_job_id(key.job);
  statistics.set_step(key.step);
  statistics.set_replica(key.replica);
  statistics.set_error(std::string(error.message()));
  owner_.take({.key = key,
               .submission = submission,
               .outcome = error,
               .statistics = std::move(statistics)});
}

void PlanDesk::Make(const PlanKey& key, const Submission& submission,
                    Clock::time_point submitted, const std::stop_token& stop) {
  const Clock::time_point begin = Clock::now();
  const bool hurried = stop.stop_requested();
  if (!owner_.wants(key, submission, /*cut_short=*/false)) return;
  absl::StatusOr<ReadyPlan> ready = FindOrMake(key, submission, stop);
  const Clock::time_point end = Clock::now();
  if (!owner_.wants(key, submission, stop.stop_requested())) return;
  if (!ready.ok()) {
    Fail(key, submission, ready.status());
    return;
  }
  v1::PlanStatistics& s = ready->statistics;
  s.set_queued_ns(nanoseconds(begin - submitted).count());
  if (!ready->durable && store_->enabled()) {
    const absl::Status saved = submission.files->SavePlan(*ready);
    store_->NoteError("plan", saved);
    ready->durable =
        saved.ok() && submission.saved && submission.files->job_saved();
  }
  s.set_latency_ns(nanoseconds(Clock::now() - submitted).count());
  Count(*ready, end - begin);
  DeskResult result{.key = key, .submission = submission, .statistics = s};
  // One that was found says nothing about how long others take.
  if (hurried && s.search_ns() > 0) result.hurried = Clock::now() - begin;
  // Made before the plan is handed on, so that answering threads only pass on
  // bytes.
  MakeShares(&*ready);
  result.outcome = std::make_shared<const ReadyPlan>(*std::move(ready));
  owner_.take(std::move(result));
}

}  // namespace pipeloom::service
