#include "planner/step/plan_ahead.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pipeloom::planner {

bool PlanAhead::Submit(const PlanKey& key, Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || running_.contains(key)) return false;
    Job& job = jobs_[key.job];
    const bool idle = job.queue.empty() && job.running == 0;
    if (!job.queue.try_emplace(key, std::move(work)).second) return false;
    if (idle) job.charged = std::max(job.charged, floor_);
    ++queued_;
    ++counters_.submitted;
  }
  // Wakes all threads: a single one might be of a lane that does not take it.
  changed_.notify_all();
  return true;
}

void PlanAhead::Hurry(const PlanKey& key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto running = running_.find(key); running != running_.end()) {
      if (running->second.request_stop()) ++counters_.hurried;
      return;
    }
    const auto job = jobs_.find(key.job);
    if (job == jobs_.end() || !job->second.queue.contains(key)) return;
    if (hurried_.insert(key).second) ++counters_.hurried;
  }
  changed_.notify_all();
}

void PlanAhead::Await(const PlanKey& key) {
  const std::lock_guard lock(mutex_);
  ++awaited_[key];
}

void PlanAhead::Leave(const PlanKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = awaited_.find(key);
  if (found != awaited_.end() && --found->second == 0) awaited_.erase(found);
}

void PlanAhead::Cancel(const std::string& job) {
  std::map<PlanKey, Work> dropped;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, stop] : running_) {
      if (key.job == job) stop.request_stop();
    }
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    dropped.swap(found->second.queue);
    queued_ -= static_cast<int32_t>(dropped.size());
    counters_.cancelled += static_cast<int64_t>(dropped.size());
    for (const auto& [key, work] : dropped) hurried_.erase(key);
    if (found->second.running == 0) jobs_.erase(found);
  }
  changed_.notify_all();
  for (auto& [key, work] : dropped) {
    if (work.cancelled) work.cancelled();
  }
}

bool PlanAhead::HasWork(Lane lane) const {
  return lane == Lane::kHurried ? !hurried_.empty() : queued_ > 0;
}

PlanAhead::Taken PlanAhead::TakeOut(const PlanKey& key) {
  Job& job = jobs_.at(key.job);
  const auto found = job.queue.find(key);
  Taken taken{found->first, std::move(found->second)};
  job.queue.erase(found);
  ++job.running;
  floor_ = std::max(floor_, job.charged);
  job.charged += std::max<int64_t>(1, taken.work.cost.count());
  --queued_;
  return taken;
}

const PlanKey& PlanAhead::NextOf(const std::string& name,
                                 const Job& job) const {
  for (auto it = awaited_.lower_bound({name, INT64_MIN, INT32_MIN});
       it != awaited_.end() && it->first.job == name; ++it) {
    if (const auto found = job.queue.find(it->first);
        found != job.queue.end()) {
      return found->first;
    }
  }
  return job.queue.begin()->first;
}

PlanAhead::Taken PlanAhead::Take(Lane lane) {
  if (lane == Lane::kHurried || !hurried_.empty()) {
    const PlanKey key = *hurried_.begin();
    hurried_.erase(hurried_.begin());
    Taken taken = TakeOut(key);
    running_[key].request_stop();
    return taken;
  }
  const PlanKey* next = nullptr;
  int64_t least = 0;
  for (const auto& [name, job] : jobs_) {
    if (job.queue.empty() || (next != nullptr && job.charged >= least)) {
      continue;
    }
    next = &NextOf(name, job);
    least = job.charged;
  }
  const PlanKey key = *next;
  Taken taken = TakeOut(key);
  running_.try_emplace(key);
  return taken;
}

bool PlanAhead::RunNext(Lane lane, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, stop, [&] { return HasWork(lane) || closed_; });
  if (stop.stop_requested() || !HasWork(lane)) return false;
  const Taken taken = Take(lane);
  const std::stop_token mine = running_.at(taken.key).get_token();
  lock.unlock();
  taken.work.run(mine);
  lock.lock();
  running_.erase(taken.key);
  ++counters_.finished;
  const auto job = jobs_.find(taken.key.job);
  if (job == jobs_.end()) return true;
  --job->second.running;
  // A job without work is forgotten once others have caught up with it, so
  // that it cannot shed its charge by a short pause.
  std::erase_if(jobs_, [&](const auto& entry) {
    const Job& j = entry.second;
    return j.queue.empty() && j.running == 0 && j.charged <= floor_;
  });
  return true;
}

void PlanAhead::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

int32_t PlanAhead::queued() const {
  const std::lock_guard lock(mutex_);
  return queued_;
}

int32_t PlanAhead::queued(const std::string& job) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job);
  return found == jobs_.end()
             ? 0
             : static_cast<int32_t>(found->second.queue.size());
}

int32_t PlanAhead::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(running_.size());
}

PlanAheadCounters PlanAhead::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace pipeloom::planner
