#include "service/jobs/job_table.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "service/jobs/job_errors.h"

namespace pipeloom::service {

Job* JobTable::Find(const std::string& id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

const Job* JobTable::Find(const std::string& id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

Job& JobTable::Add(const std::string& id, Job job) {
  return jobs_.emplace(id, std::move(job)).first->second;
}

JobTable::Jobs::node_type JobTable::Remove(const std::string& id, Gone* gone) {
  const auto found = jobs_.find(id);
  for (auto& [number, step] : found->second.steps) {
    FreePlans(&found->second, &step, gone);
  }
  return jobs_.extract(found);
}

absl::StatusOr<bool> JobTable::CheckBatch(const Job& job,
                                          const StepBatch& packed) const {
  const int64_t number = packed.step;
  const auto known = job.steps.find(number);
  if (known == job.steps.end()) {
    if (job.newest >= 0 && number <= NewestDropped(job)) {
      return absl::NotFoundError(absl::StrFormat(
          "step is %d; step %d is submitted, and %d steps behind it are kept; "
          "a training that goes back sends a larger attempt than %d",
          number, job.newest, limits_.keep_steps, job.attempt));
    }
    if (job.newest >= 0 && number - job.newest > limits_.max_step_jump) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "step is %d; it must be at most %d, as step %d is the newest one; "
          "for steps of another run send a larger attempt than %d",
          number, job.newest + limits_.max_step_jump, job.newest, job.attempt));
    }
    return false;
  }
  const Step& step = known->second;
  if (step.dropped) {
    return absl::NotFoundError(
        absl::StrFormat("step is %d, which is not kept any more", number));
  }
  if (const auto old = step.batches.find(packed.replica);
      old != step.batches.end()) {
    if (old->second->content == packed.content) return true;
    return absl::AlreadyExistsError(absl::StrFormat(
        "batch is another than the one submitted before for step %d; a "
        "training that goes back sends a larger attempt than %d, and each run "
        "has a job_id of its own",
        number, job.attempt));
  }
  if (!step.batches.empty() &&
      (packed.replica < 0) != (step.batches.begin()->first < 0)) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "replica is %s, but step %d was submitted %s",
        packed.replica < 0 ? "absent" : "set", number,
        packed.replica < 0 ? "by replica" : "for all replicas"));
  }
  return false;
}

absl::StatusOr<bool> JobTable::Accept(const std::string& id,
                                      const std::vector<int64_t>& tasks,
                                      StepBatch packed,
                                      const WaitingCalls& calls,
                                      Submission* submission, Gone* gone) {
  Job* job = Find(id);
  // The job may have been closed meanwhile, and another opened.
  if (job == nullptr || job->served != submission->job) return NoJob(id);
  submission->files = job->files;
  if (packed.attempt < job->attempt) {
    return OldAttempt(id, packed.attempt, job->attempt);
  }
  if (packed.attempt > job->attempt) BeginAttempt(packed.attempt, job, gone);
  PIPELOOM_ASSIGN_OR_RETURN(const bool existed, CheckBatch(*job, packed));
  if (existed) return true;
  const std::vector<int32_t> replicas = ReplicasOf(packed, job->replicas());
  std::vector<Bytes> expected;
  Bytes all{};
  for (const int64_t count : tasks) {
    expected.push_back(
        Bytes(static_cast<int64_t>(4096 + Real(count) * job->bytes_per_task)));
    all += expected.back();
  }
  const int64_t number = packed.step;
  PIPELOOM_RETURN_IF_ERROR(MakeRoom(*job, number, all, calls, gone));
  Step& step = job->steps[number];
  if (step.epoch == nullptr) step.epoch = job->epoch;
  packed.epoch = step.epoch;
  packed.job = job->request;
  submission->batch = std::make_shared<const StepBatch>(std::move(packed));
  step.batches[submission->batch->replica] = submission->batch;
  for (size_t i = 0; i < replicas.size(); ++i) {
    Promise(replicas[i], expected[i], job, &step);
  }
  job->newest = std::max(job->newest, number);
  Forget(job, gone);
  return false;
}

void JobTable::BeginAttempt(int64_t attempt, Job* job, Gone* gone) {
  for (auto& [number, step] : job->steps) {
    FreePlans(job, &step, gone);
    gone->steps.push_back(std::move(step));
  }
  gone->files.push_back({.files = job->files, .attempt = job->attempt});
  job->steps.clear();
  job->fetches.clear();
  job->pace.BeginAttempt();
  job->newest = -1;
  job->attempt = attempt;
  job->attempt_saved = false;
}

bool JobTable::HasStep(
    const PlanKey& key,
    const std::shared_ptr<const StepBatch>& submission) const {
  const Job* job = Find(key.job);
  if (job == nullptr || job->attempt != key.attempt) return false;
  const auto step = job->steps.find(key.step);
  if (step == job->steps.end()) return false;
  const auto batch = step->second.batches.find(submission->replica);
  return batch != step->second.batches.end() && batch->second == submission;
}

bool JobTable::HasBatch(const PlanKey& key) const {
  const Job* job = Find(key.job);
  if (job == nullptr || job->attempt != key.attempt) return false;
  const auto step = job->steps.find(key.step);
  return step != job->steps.end() &&
         (step->second.batches.contains(key.replica) ||
          step->second.batches.contains(-1));
}

Step* JobTable::FindStep(const PlanKey& key,
                         const std::shared_ptr<const StepBatch>& submission) {
  return HasStep(key, submission) ? &Find(key.job)->steps.at(key.step)
                                  : nullptr;
}

const Outcome* JobTable::FindOutcome(const Job& job, const PlanKey& key) {
  const auto step = job.steps.find(key.step);
  if (step == job.steps.end()) return nullptr;
  const auto plan = step->second.plans.find(key.replica);
  return plan == step->second.plans.end() ? nullptr : &plan->second;
}

std::shared_ptr<const StepBatch> JobTable::FindOnDisk(
    const PlanKey& key, Fingerprint* checksum) const {
  const Job* job = Find(key.job);
  if (job == nullptr || job->attempt != key.attempt) return nullptr;
  const Outcome* outcome = FindOutcome(*job, key);
  if (outcome == nullptr || !std::holds_alternative<OnDisk>(*outcome)) {
    return nullptr;
  }
  *checksum = std::get<OnDisk>(*outcome).checksum;
  const auto& batches = job->steps.at(key.step).batches;
  for (const int32_t r : {key.replica, -1}) {
    if (const auto it = batches.find(r); it != batches.end()) return it->second;
  }
  return nullptr;
}

bool JobTable::IsForgotten(const Job& job, int64_t step) const {
  const auto found = job.steps.find(step);
  return found == job.steps.end() ? step <= NewestDropped(job)
                                  : found->second.dropped;
}

void JobTable::SetOutcome(int32_t replica, Outcome outcome, Job* job,
                          Step* step) {
  Fulfil(replica, job, step);
  if (const auto* plan = std::get_if<PlanPtr>(&outcome)) {
    const Bytes size = (*plan)->size;
    plan_bytes_ += size;
    job->plan_bytes += size;
    job->bytes_per_task =
        (7 * job->bytes_per_task +
         Real(size.count()) / std::max(1, (*plan)->plan.graph.num_tasks())) /
        8;
  }
  step->plans[replica] = std::move(outcome);
}

int64_t JobTable::PassedBy(const Job& job) {
  if (static_cast<int64_t>(job.fetches.size()) < job.replicas()) return -1;
  int64_t passed = std::numeric_limits<int64_t>::max();
  for (const auto& [replica, fetches] : job.fetches) {
    const auto& ranks = fetches.ranks;
    const bool whole_only = std::all_of(ranks.begin(), ranks.end(),
                                        [](int64_t s) { return s < 0; });
    passed = std::min(
        passed, whole_only ? fetches.whole
                           : *std::min_element(ranks.begin(), ranks.end()));
  }
  return passed;
}

bool JobTable::NoteLate(const PlanKey& key) {
  if (!HasBatch(key)) return false;
  Job& job = *Find(key.job);
  // Searches by evaluations take as long as they take.
  return job.served->spec().search.evaluations == 0 &&
         FindOutcome(job, key) == nullptr &&
         job.pace.Late(key.step, job.newest);
}

void JobTable::NoteFetch(const PlanKey& key, int32_t rank, Job* job) {
  job->pace.InTime(key.step);
  Job::Fetches& fetches = job->fetches[key.replica];
  if (fetches.ranks.empty()) {
    fetches.ranks.assign(static_cast<size_t>(job->served->spec().parallel.pp),
                         -1);
  }
  int64_t& newest =
      rank < 0 ? fetches.whole : fetches.ranks[static_cast<size_t>(rank)];
  newest = std::max(newest, key.step);
}

void JobTable::Promise(int32_t replica, Bytes bytes, Job* job, Step* step) {
  step->promised[replica] = bytes;
  promised_bytes_ += bytes;
  job->plan_bytes += bytes;
}

void JobTable::Fulfil(int32_t replica, Job* job, Step* step) {
  const auto found = step->promised.find(replica);
  if (found == step->promised.end()) return;
  promised_bytes_ -= found->second;
  job->plan_bytes -= found->second;
  step->promised.erase(found);
}

void JobTable::Free(Outcome* outcome, Job* job, Gone* gone) {
  PlanPtr& plan = std::get<PlanPtr>(*outcome);
  plan_bytes_ -= plan->size;
  job->plan_bytes -= plan->size;
  gone->plans.push_back(std::move(plan));
}

void JobTable::LeaveOnDisk(Outcome* outcome, Job* job, Gone* gone) {
  Free(outcome, job, gone);
  *outcome = OnDisk{gone->plans.back()->checksum};
}

void JobTable::FreePlans(Job* job, Step* step, Gone* gone) {
  for (auto& [replica, outcome] : step->plans) {
    if (std::holds_alternative<PlanPtr>(outcome)) Free(&outcome, job, gone);
  }
  step->plans.clear();
  while (!step->promised.empty()) {
    Fulfil(step->promised.begin()->first, job, step);
  }
}

void JobTable::Forget(Job* job, Gone* gone) {
  while (!job->steps.empty() &&
         job->steps.begin()->first <= NewestDropped(*job)) {
    const auto oldest = job->steps.begin();
    FreePlans(job, &oldest->second, gone);
    gone->files.push_back({.files = job->files,
                           .attempt = job->attempt,
                           .step = oldest->first,
                           .replicas = job->replicas()});
    gone->steps.push_back(std::move(oldest->second));
    job->steps.erase(oldest);
  }
}

bool JobTable::EvictPassed(int64_t spared, Job* job, Gone* gone) {
  const int64_t passed = PassedBy(*job) - spared;
  for (auto& [number, step] : job->steps) {
    if (number > passed) return false;
    std::vector<Outcome*> in_memory;
    bool durable = true;
    for (auto& [replica, outcome] : step.plans) {
      const auto* plan = std::get_if<PlanPtr>(&outcome);
      if (plan == nullptr) continue;
      in_memory.push_back(&outcome);
      durable &= (*plan)->durable;
    }
    if (in_memory.empty()) continue;
    if (durable) {
      for (Outcome* outcome : in_memory) LeaveOnDisk(outcome, job, gone);
      return true;
    }
    FreePlans(job, &step, gone);
    gone->files.push_back({.files = job->files,
                           .attempt = job->attempt,
                           .step = number,
                           .replicas = job->replicas()});
    gone->steps.push_back(std::exchange(step, {}));
    step.dropped = true;
    return true;
  }
  return false;
}

bool JobTable::EvictDurable(const std::string& id, const WaitingCalls& calls,
                            Job* job, Gone* gone) {
  // The newest step is the one that is needed last.
  for (auto it = job->steps.rbegin(); it != job->steps.rend(); ++it) {
    for (auto& [replica, outcome] : it->second.plans) {
      const auto* plan = std::get_if<PlanPtr>(&outcome);
      if (plan == nullptr || !(*plan)->durable ||
          calls.Contains(PlanKey{id, it->first, replica, job->attempt})) {
        continue;
      }
      LeaveOnDisk(&outcome, job, gone);
      return true;
    }
  }
  return false;
}

std::vector<JobTable::Jobs::value_type*> JobTable::ByMemory() {
  std::vector<Jobs::value_type*> jobs;
  for (auto& entry : jobs_) jobs.push_back(&entry);
  std::stable_sort(jobs.begin(), jobs.end(), [](const auto* a, const auto* b) {
    return a->second.plan_bytes > b->second.plan_bytes;
  });
  return jobs;
}

bool JobTable::EvictOnePassed(int64_t spared, Gone* gone) {
  for (auto* entry : ByMemory()) {
    if (EvictPassed(spared, &entry->second, gone)) return true;
  }
  return false;
}

bool JobTable::EvictOne(const WaitingCalls& calls, Gone* gone) {
  if (EvictOnePassed(0, gone)) return true;
  for (auto* entry : ByMemory()) {
    if (EvictDurable(entry->first, calls, &entry->second, gone)) return true;
  }
  return false;
}

void JobTable::EvictToLimit(const WaitingCalls& calls, Gone* gone) {
  while (plan_bytes_ > limits_.passed_bytes &&
         EvictOnePassed(limits_.reported_steps, gone)) {
  }
  while (plan_bytes_ > limits_.plan_bytes && EvictOne(calls, gone)) {
  }
}

absl::Status JobTable::MakeRoom(const Job& job, int64_t step, Bytes bytes,
                                const WaitingCalls& calls, Gone* gone) {
  while (plan_bytes_ + promised_bytes_ + bytes > limits_.plan_bytes) {
    if (EvictOne(calls, gone)) continue;
    if (plan_bytes_ + promised_bytes_ == Bytes()) break;
    // A plan larger than the limit is made alone. The step that ranks wait for
    // is always planned, as nothing is given up before it was fetched. Another
    // job that has little is not made to wait for one that has much.
    const int64_t passed = PassedBy(job);
    const auto needed = job.steps.upper_bound(passed);
    if (needed == job.steps.end() || step <= needed->first) break;
    const auto others = static_cast<int64_t>(jobs_.size());
    if (others > 1 &&
        (job.plan_bytes + bytes) * (2 * others) <= limits_.plan_bytes) {
      break;
    }
    return Busy(
        absl::StrFormat("plans that some rank has still to fetch take %s of "
                        "%s (--plan-memory); step %d is the first of them",
                        FormatBytes(plan_bytes_ + promised_bytes_),
                        FormatBytes(limits_.plan_bytes), needed->first),
        1000);
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::service
