#include "service/plans/plan_ahead.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace pipeloom::service {

bool PlanAhead::Submit(const PlanKey& key, Work work) {
  {
    const MutexLock lock(&mutex_);
    if (closed_) return false;
    if (const auto running = running_.find(key); running != running_.end()) {
      if (running->second.next.has_value()) return false;
      running->second.next = std::move(work);
      ++counters_.submitted;
      return true;
    }
    Job& job = jobs_[key.job];
    if (job.queue.contains(key) || AwaitedBy(key) != nullptr) return false;
    const bool idle = job.queue.empty() && job.running == 0;
    if (idle) job.charged = std::max(job.charged, floor_);
    Place(key, {.work = std::move(work)});
    ++counters_.submitted;
  }
  changed_.NotifyAll();
  return true;
}

PlanAhead::Running* PlanAhead::RunningLike(const std::string& job,
                                           const Fingerprint& like) {
  if (like == Fingerprint()) return nullptr;
  for (auto& [key, running] : running_) {
    if (key.job == job && running.like == like) return &running;
  }
  return nullptr;
}

PlanAhead::Running* PlanAhead::AwaitedBy(const PlanKey& key) {
  for (auto& [other, running] : running_) {
    if (running.waiting.contains(key)) return &running;
  }
  return nullptr;
}

void PlanAhead::Place(const PlanKey& key, Waiting placed) {
  if (Running* first = RunningLike(key.job, placed.work.like)) {
    if (placed.hurried) first->stop.request_stop();
    first->waiting.emplace(key, std::move(placed));
    ++waiting_;
    return;
  }
  jobs_[key.job].queue.emplace(key, std::move(placed.work));
  if (placed.hurried) hurried_.insert(key);
  ++queued_;
}

PlanAhead::Running& PlanAhead::Begin(const PlanKey& key, const Work& work) {
  Running& running = running_[key];
  running.begun = next_begun_++;
  running.like = work.like;
  running.cost = work.cost;
  if (work.like == Fingerprint()) return running;
  auto& queue = jobs_.at(key.job).queue;
  for (auto it = queue.begin(); it != queue.end();) {
    if (it->second.like != work.like) {
      ++it;
      continue;
    }
    const bool hurried = hurried_.erase(it->first) > 0;
    if (hurried) running.stop.request_stop();
    running.waiting.emplace(
        it->first, Waiting{.work = std::move(it->second), .hurried = hurried});
    --queued_;
    ++waiting_;
    it = queue.erase(it);
  }
  return running;
}

void PlanAhead::SetFree(const PlanKey& key, Waiters which) {
  {
    const MutexLock lock(&mutex_);
    const auto running = running_.find(key);
    if (running == running_.end()) return;
    auto& waiting = running->second.waiting;
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (which == Waiters::kHurried && !it->second.hurried) {
        ++it;
        continue;
      }
      it->second.work.like = {};
      Place(it->first, std::move(it->second));
      --waiting_;
      it = waiting.erase(it);
    }
    // Later work that is like it does not wait either.
    if (which == Waiters::kAll) running->second.like = {};
  }
  changed_.NotifyAll();
}

void PlanAhead::Hurry(const PlanKey& key) {
  {
    const MutexLock lock(&mutex_);
    if (const auto running = running_.find(key); running != running_.end()) {
      if (running->second.stop.request_stop()) ++counters_.hurried;
      running->second.next_hurried = running->second.next.has_value();
      return;
    }
    if (Running* first = AwaitedBy(key)) {
      Waiting& waiting = first->waiting.at(key);
      if (!waiting.hurried) ++counters_.hurried;
      waiting.hurried = true;
      first->stop.request_stop();
      return;
    }
    const auto job = jobs_.find(key.job);
    if (job == jobs_.end() || !job->second.queue.contains(key)) return;
    if (hurried_.insert(key).second) ++counters_.hurried;
  }
  changed_.NotifyAll();
}

void PlanAhead::Await(const PlanKey& key) {
  const MutexLock lock(&mutex_);
  ++awaited_[key];
}

void PlanAhead::Leave(const PlanKey& key) {
  const MutexLock lock(&mutex_);
  const auto found = awaited_.find(key);
  if (found != awaited_.end() && --found->second == 0) awaited_.erase(found);
}

void PlanAhead::MakeRoomFor(const PlanKey& key) {
  const MutexLock lock(&mutex_);
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end() || job->second.running > 0 ||
      !job->second.queue.contains(key)) {
    return;
  }
  Running* longest = nullptr;
  int32_t most = 0;
  for (auto& [other, running] : running_) {
    if (running.hurried) continue;
    // A search that was asked to stop already makes room.
    if (running.stop.stop_requested()) return;
    const int32_t count = jobs_.at(other.job).running;
    if (longest == nullptr || count > most ||
        (count == most && running.begun < longest->begun)) {
      longest = &running;
      most = count;
    }
  }
  if (longest == nullptr) return;
  longest->stop.request_stop();
  room_for_ = key.job;
  ++counters_.hurried;
}

std::optional<int64_t> PlanAhead::BegunBefore(const PlanKey& key) const {
  const MutexLock lock(&mutex_);
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end()) return std::nullopt;
  bool queued = job->second.queue.contains(key);
  for (const auto& [other, running] : running_) {
    queued = queued || running.waiting.contains(key);
  }
  if (!queued) return std::nullopt;
  return job->second.begun;
}

void PlanAhead::Charge(const PlanKey& key, Duration cost) {
  const MutexLock lock(&mutex_);
  const auto running = running_.find(key);
  if (running == running_.end()) return;
  jobs_.at(key.job).charged += (cost - running->second.cost).count();
  running->second.cost = cost;
}

void PlanAhead::Cancel(const std::string& job) {
  std::vector<Work> dropped;
  {
    const MutexLock lock(&mutex_);
    for (auto& [key, running] : running_) {
      if (key.job != job) continue;
      running.stop.request_stop();
      if (running.next.has_value()) dropped.push_back(*std::move(running.next));
      running.next.reset();
      waiting_ -= static_cast<int32_t>(running.waiting.size());
      for (auto& [other, waiting] : running.waiting) {
        dropped.push_back(std::move(waiting.work));
      }
      running.waiting.clear();
    }
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    auto& queue = found->second.queue;
    queued_ -= static_cast<int32_t>(queue.size());
    for (auto& [key, work] : queue) {
      hurried_.erase(key);
      dropped.push_back(std::move(work));
    }
    queue.clear();
    counters_.cancelled += static_cast<int64_t>(dropped.size());
    if (found->second.running == 0) jobs_.erase(found);
  }
  for (const Work& work : dropped) {
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
  ++job.begun;
  floor_ = std::max(floor_, job.charged);
  taken.work.cost = std::max(taken.work.cost, Duration(1));
  job.charged += taken.work.cost.count();
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
    Running& running = Begin(key, taken.work);
    running.hurried = true;
    running.stop.request_stop();
    return taken;
  }
  const std::string first = std::exchange(room_for_, {});
  const PlanKey* next = nullptr;
  int64_t least = 0;
  for (const auto& [name, job] : jobs_) {
    if (job.queue.empty()) continue;
    if (next != nullptr && job.charged >= least && name != first) continue;
    next = &NextOf(name, job);
    if (name == first) break;
    least = job.charged;
  }
  const PlanKey key = *next;
  Taken taken = TakeOut(key);
  Begin(key, taken.work);
  return taken;
}

bool PlanAhead::RunNext(Lane lane, const std::stop_token& stop) {
  const std::stop_callback wake(stop, [this] {
    // Not between another thread's look at the condition and its wait.
    { const MutexLock lock(&mutex_); }
    changed_.NotifyAll();
  });
  std::optional<Taken> taken;
  std::stop_token mine;
  {
    const MutexLock lock(&mutex_);
    const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return HasWork(lane) || closed_ || stop.stop_requested();
    };
    changed_.Wait(&mutex_, due);
    if (stop.stop_requested() || !HasWork(lane)) return false;
    taken = Take(lane);
    mine = running_.at(taken->key).stop.get_token();
  }
  taken->work.run(mine);
  {
    const MutexLock lock(&mutex_);
    Finished(taken->key);
  }
  changed_.NotifyAll();
  return true;
}

void PlanAhead::Finished(const PlanKey& key) {
  Running over = std::move(running_.extract(key).mapped());
  ++counters_.finished;
  Job& job = jobs_.at(key.job);  // It stays while something of it runs.
  --job.running;
  for (auto& [other, waiting] : over.waiting) {
    Place(other, std::move(waiting));
    --waiting_;
  }
  if (over.next.has_value()) {
    Place(key, {.work = *std::move(over.next), .hurried = over.next_hurried});
  }
  // A job without work is forgotten once others have caught up with it, so
  // that it cannot shed its charge by a short pause.
  std::erase_if(jobs_, [floor = floor_](const auto& entry) {
    const Job& j = entry.second;
    return j.queue.empty() && j.running == 0 && j.charged <= floor;
  });
}

void PlanAhead::Close() {
  {
    const MutexLock lock(&mutex_);
    closed_ = true;
  }
  changed_.NotifyAll();
}

int32_t PlanAhead::queued() const {
  const MutexLock lock(&mutex_);
  return queued_ + waiting_;
}

int32_t PlanAhead::queued(const std::string& job) const {
  const MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return 0;
  size_t all = found->second.queue.size();
  for (const auto& [key, running] : running_) {
    if (key.job == job) all += running.waiting.size();
  }
  return static_cast<int32_t>(all);
}

int32_t PlanAhead::ready() const {
  const MutexLock lock(&mutex_);
  return queued_ + static_cast<int32_t>(running_.size());
}

int32_t PlanAhead::running() const {
  const MutexLock lock(&mutex_);
  return static_cast<int32_t>(running_.size());
}

PlanAheadCounters PlanAhead::counters() const {
  const MutexLock lock(&mutex_);
  return counters_;
}

}  // namespace pipeloom::service
