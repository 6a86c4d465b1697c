// Opening, closing and correcting jobs.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "planner/core/timed_budget.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/trace_proto.h"
#include "service/core/planner_core.h"
#include "service/jobs/job_costs.h"
#include "service/jobs/job_errors.h"

namespace pipeloom::service {
namespace {

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

// Returns the budget of a search that is not wanted any more once `stop` is
// requested. It may end before it begins.
planner::SearchBudget BudgetUntil(PlannerCore::Clock::time_point begin,
                                  PlannerCore::Clock::time_point end,
                                  int32_t threads,
                                  const std::stop_token& stop) {
  planner::SearchBudget budget;
  planner::EndAfter(begin, end - begin, &budget);
  budget.stop = stop;
  budget.needs_answer = false;
  budget.threads = threads;
  return budget;
}

}  // namespace

v1::OpenJobResponse PlannerCore::Describe(const Job& job, bool existed) const {
  const JobSpec& spec = job.served->spec();
  v1::OpenJobResponse response;
  response.set_job_id(job.served->id());
  *response.mutable_partition() = ToProto(job.served->partition(), spec.model);
  response.set_num_ranks(spec.parallel.pp);
  response.set_num_replicas(spec.parallel.dp);
  response.set_existed(existed);
  response.set_partitions_tried(job.served->partitions_tried());
  response.set_partition_cut_short(job.cut_short);
  response.set_attempt(job.attempt);
  if (spec.search.evaluations == 0) {
    response.set_search_deadline_us(
        std::chrono::duration_cast<std::chrono::microseconds>(
            std::min<std::chrono::nanoseconds>(spec.search.deadline,
                                               options_.max_search))
            .count());
  }
  for (const ModuleSpec& m : spec.model.modules) {
    response.add_module_names(m.name);
  }
  return response;
}

std::optional<absl::StatusOr<v1::OpenJobResponse>> PlannerCore::FindOpen(
    const JobRequest& request) {
  Job* job = table_.Find(request.id);
  if (job == nullptr) return std::nullopt;
  job->used = options_.now();
  if (request.close_key != Fingerprint() &&
      request.close_key != job->close_key) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "close_key is not that of job \"%s\", which is open", request.id));
  }
  if (job->request != request.content) {
    const bool same_job =
        FingerprintOf(request.spec) == FingerprintOf(job->served->spec());
    return absl::AlreadyExistsError(absl::StrFormat(
        "job_id is \"%s\"; a job of that id with other content is open: its "
        "%s; "
        "a run that starts again repeats its request, another run takes "
        "another job_id, and CloseJob ends the open one",
        request.id,
        same_job ? "sample, partition, partition_time_us or defer_surplus is "
                   "another"
                 : "model, cluster, layout, training or search is another"));
  }
  if (request.resumed.has_value() &&
      *request.resumed != job->served->partition()) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "job_id is \"%s\"; it is open with another partition than `resume`",
        request.id));
  }
  return Describe(*job, true);
}

absl::Status PlannerCore::BeginOpening(const std::string& id,
                                       std::function<void()> again) {
  if (const auto other = opening_.find(id); other != opening_.end()) {
    if (again) other->second.push_back(std::move(again));
    return absl::AbortedError("the job is being opened by another call");
  }
  if (draining_) return absl::UnavailableError("the service is going down");
  const size_t open = table_.jobs().size();
  if (open + opening_.size() >= static_cast<size_t>(options_.max_jobs)) {
    return Busy(
        absl::StrFormat("%d jobs are open, as many as may be (--max-jobs); "
                        "one gives way when it has had no call for %s",
                        open, FormatDuration(Duration(options_.idle_time))),
        10'000);
  }
  opening_.try_emplace(id);
  return absl::OkStatus();
}

absl::StatusOr<v1::OpenJobResponse> PlannerCore::OpenJob(
    const v1::OpenJobRequest& message, Clock::time_point deadline,
    const std::stop_token& stop, std::function<void()> again) {
  const Clock::time_point begin = Clock::now();
  PIPELOOM_ASSIGN_OR_RETURN(
      JobRequest request,
      ReadJobRequest(message, options_.files, options_.batch));
  const std::string id = request.id;
  CloseIdleJob();
  {
    const MutexLock lock(&mutex_);
    if (auto answer = FindOpen(request)) return *answer;
    PIPELOOM_RETURN_IF_ERROR(BeginOpening(id, std::move(again)));
  }
  PartitionEffort effort;
  effort.left = stop;
  // Requested at the end of the search and when the caller leaves; it also ends
  // evaluations that run already.
  const auto over = std::make_shared<std::stop_source>();
  const std::stop_callback left(stop, [&] { over->request_stop(); });
  std::chrono::nanoseconds search =
      request.SearchTime(options_.usual_partition_time);
  const bool searched = search.count() > 0;
  if (searched && options_.find_partition) {
    request.given = options_.find_partition(request.content, request.spec);
    if (request.given.has_value()) search = {};
  }
  if (search.count() > 0) {
    const Clock::time_point end =
        PartitionEnd(begin, search, options_.partition_time, deadline);
    timer_.At(end, [over] { over->request_stop(); });
    effort.stop = over->get_token();
    effort.expired = [over] { return over->stop_requested(); };
    effort.threads = options_.threads;
  }
  const std::optional<Partition>& used =
      request.resumed.has_value() ? request.resumed : request.given;
  const std::chrono::nanoseconds warm_up =
      request.spec.search.evaluations > 0 ? std::chrono::nanoseconds(0)
      : searched
          ? std::max(options_.warm_up_time, options_.searched_warm_up_time)
          : options_.warm_up_time;
  // Whether lessons are worth to be kept: a hasty caller's are not.
  bool keeps_lessons = false;
  if (warm_up.count() > 0) {
    if (searched && used.has_value() && options_.find_lessons) {
      effort.lessons =
          options_.find_lessons(request.content, *used).value_or(Lessons());
    }
    effort.warm_up = [&] {
      const Clock::time_point now = Clock::now();
      const Clock::time_point end =
          PartitionEnd(now, warm_up, options_.partition_time, deadline);
      keeps_lessons = searched && end - now >= warm_up;
      return BudgetUntil(now, end, options_.threads, stop);
    };
  }
  absl::StatusOr<std::shared_ptr<const ServedJob>> served =
      stop.stop_requested()
          ? absl::CancelledError("the caller left")
          : ServedJob::Create(id, std::move(request.spec), request.sample, used,
                              options_.profiles, effort, request.defer_surplus);
  std::shared_ptr<JobFiles> files;
  if (served.ok() && (*served)->partitions_tried() > 0 &&
      options_.keep_partition) {
    options_.keep_partition(request.content, (*served)->spec(),
                            (*served)->partition());
  }
  if (served.ok() && keeps_lessons && options_.keep_lessons) {
    options_.keep_lessons(request.content, (*served)->partition(),
                          (*served)->warm_up());
  }
  if (served.ok()) {
    absl::StatusOr<std::shared_ptr<JobFiles>> begun = store_->Begin(id);
    store_->NoteError("job", begun.status());
    files = begun.ok() ? *std::move(begun) : store_->NoFiles(id);
  }
  v1::OpenJobResponse response;
  std::vector<std::function<void()>> others;
  // Called without the lock, however this call ends.
  const absl::Cleanup tell = [&] {
    for (const auto& other : others) other();
  };
  {
    const MutexLock lock(&mutex_);
    others = std::move(opening_.extract(id).mapped());
    if (stop.stop_requested()) return absl::CancelledError("the caller left");
    if (!served.ok()) return served.status();
    if (draining_) return absl::UnavailableError("the service is going down");
    Job job(*served);
    job.request = request.content;
    job.close_key = request.close_key;
    job.files = std::move(files);
    job.cut_short = over->stop_requested();
    job.epoch =
        job.served->MakeEpoch(FactorsOf(job.learned, job.served->spec().model));
    job.used = options_.now();
    response = Describe(job, false);
    table_.Add(id, std::move(job));
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
  const PlanKey key{request.job_id(), request.step(), request.replica(),
                    request.attempt()};
  std::shared_ptr<Mutex> reporting;
  {
    const MutexLock lock(&mutex_);
    const Job* job = table_.Find(key.job);
    if (job == nullptr) return NoJob(key.job);
    reporting = job->reporting;
  }
  // Learning from a long trace is done without the core's lock.
  const MutexLock one_report(reporting.get());
  std::shared_ptr<const ServedJob> served;
  std::shared_ptr<const ReadyPlan> ready;
  std::shared_ptr<const CostEpoch> epoch;
  std::optional<emulator::CostLearner> learned;
  std::set<int32_t> ranks;
  std::set<int32_t> reported;
  {
    const MutexLock lock(&mutex_);
    const Job* job = table_.Find(key.job);
    if (job == nullptr || job->reporting != reporting) return NoJob(key.job);
    if (key.attempt != job->attempt) {
      return OldAttempt(key.job, key.attempt, job->attempt);
    }
    const Outcome* outcome = JobTable::FindOutcome(*job, key);
    if (outcome == nullptr || !std::holds_alternative<PlanPtr>(*outcome)) {
      return absl::NotFoundError(absl::StrCat(NameOf(key), " has no plan"));
    }
    ready = std::get<PlanPtr>(*outcome);
    if (request.plan_checksum().high() != ready->checksum.high ||
        request.plan_checksum().low() != ready->checksum.low) {
      return absl::InvalidArgumentError(
          "plan_checksum is not that of the step's plan");
    }
    const Step& step = job->steps.at(key.step);
    for (const Span& span : trace->spans) {
      const int32_t r = span.rank.value();
      ranks.insert(r);
      if (step.reported.contains({key.replica, r})) reported.insert(r);
    }
    served = job->served;
    epoch = step.epoch;
    learned = job->learned;
  }
  PIPELOOM_RETURN_IF_ERROR(CheckReport(*trace, ready->plan.graph));
  // Only spans of ranks that had not reported yet count.
  std::erase_if(trace->spans, [&](const Span& span) {
    return reported.contains(span.rank.value());
  });
  v1::ReportTraceResponse response;
  PIPELOOM_ASSIGN_OR_RETURN(
      const double error,
      learned->Learn(ready->plan.graph, *trace, epoch->factors, key.step));
  response.set_mean_task_time_error(error);
  AppendCorrections(*learned, served->spec().model, &response);
  std::shared_ptr<const CostEpoch> next =
      served->MakeEpoch(FactorsOf(*learned, served->spec().model));
  {
    const MutexLock lock(&mutex_);
    Job* job = table_.Find(key.job);
    if (job == nullptr || job->reporting != reporting) return NoJob(key.job);
    job->learned = *std::move(learned);
    if (emulator::Differ(job->epoch->factors, next->factors)) {
      job->epoch = std::move(next);
    }
    if (const auto step = job->steps.find(key.step); step != job->steps.end()) {
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
    const MutexLock lock(&mutex_);
    const Job* job = table_.Find(request.job_id());
    if (job == nullptr) return NoJob(request.job_id());
    served = job->served;
  }
  return PlanVariants(
      served->spec(), request, options_.files, options_.profiles,
      {.batch = options_.batch, .tasks = options_.max_tasks}, stop);
}

absl::StatusOr<v1::CloseJobResponse> PlannerCore::Close(
    const v1::CloseJobRequest& request) {
  v1::CloseJobResponse response;
  const absl::Status closed =
      CloseNow(request.job_id(), PrintOf(request.close_key()), "job_closed");
  if (absl::IsNotFound(closed)) return response;
  if (!closed.ok()) return closed;
  response.set_existed(true);
  return response;
}

void PlannerCore::CloseIdleJob() {
  std::string idle;
  Fingerprint close_key;
  {
    const MutexLock lock(&mutex_);
    if (table_.jobs().size() + opening_.size() <
        static_cast<size_t>(options_.max_jobs)) {
      return;
    }
    Clock::time_point oldest = options_.now() - options_.idle_time;
    for (const auto& [id, job] : table_.jobs()) {
      if (job.used > oldest || calls_.size(id) > 0 ||
          desk_->queue().queued(id) > 0) {
        continue;
      }
      oldest = job.used;
      idle = id;
      close_key = job.close_key;
    }
  }
  if (!idle.empty()) CloseNow(idle, close_key, "idle_job_closed").IgnoreError();
}

absl::Status PlannerCore::CloseNow(const std::string& id, Fingerprint close_key,
                                   const char* event) {
  std::vector<Due> left;
  // The job and its files are freed without the lock.
  JobTable::Jobs::node_type closed;
  Gone gone;
  {
    const MutexLock lock(&mutex_);
    const Job* job = table_.Find(id);
    if (job == nullptr) return NoJob(id);
    if (job->close_key != Fingerprint() && job->close_key != close_key) {
      return absl::PermissionDeniedError(absl::StrFormat(
          "close_key is not that of job \"%s\"; it must be the one with which "
          "the job was opened",
          id));
    }
    desk_->queue().Cancel(id);
    for (const PlanKey& key :
         calls_.Keys(id, std::numeric_limits<int64_t>::max())) {
      left.push_back(TakeCalls(key, absl::NotFoundError("the job was closed")));
    }
    closed = table_.Remove(id, &gone);
    // Another job of this name is not opened before the files are out of its
    // way.
    opening_.try_emplace(id);
  }
  for (const Due& due : left) {
    for (const WaitingCall& call : due.calls) call.done(due.outcome);
  }
  const absl::StatusOr<std::string> files = closed.mapped().files->Close();
  store_->NoteError("closed job", files.status());
  std::vector<std::function<void()>> others;
  {
    const MutexLock lock(&mutex_);
    others = std::move(opening_.extract(id).mapped());
  }
  for (const auto& other : others) other();
  if (files.ok()) store_->NoteError("closed job", store_->Discard(*files));
  log_->Write(LogLevel::kInfo, event, {{"job", id}});
  return absl::OkStatus();
}

}  // namespace pipeloom::service
