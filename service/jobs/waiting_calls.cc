#include "service/jobs/waiting_calls.h"

#include <limits>
#include <utility>

namespace pipeloom::service {

int64_t WaitingCalls::Add(WaitingCall call) {
  const int64_t number = next_++;
  of_plan_.emplace(call.key, number);
  ++of_job_[call.key.job];
  calls_.emplace(number, std::move(call));
  return number;
}

void WaitingCalls::Leave(const WaitingCall& call) {
  const auto job = of_job_.find(call.key.job);
  if (--job->second == 0) of_job_.erase(job);
}

std::optional<WaitingCall> WaitingCalls::Take(int64_t number) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return std::nullopt;
  WaitingCall call = std::move(found->second);
  calls_.erase(found);
  const auto [begin, end] = of_plan_.equal_range(call.key);
  for (auto it = begin; it != end; ++it) {
    if (it->second != number) continue;
    of_plan_.erase(it);
    break;
  }
  Leave(call);
  return call;
}

std::vector<WaitingCall> WaitingCalls::Take(const PlanKey& key) {
  std::vector<WaitingCall> taken;
  const auto [begin, end] = of_plan_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const auto found = calls_.find(it->second);
    Leave(found->second);
    taken.push_back(std::move(found->second));
    calls_.erase(found);
  }
  of_plan_.erase(begin, end);
  return taken;
}

std::vector<WaitingCall> WaitingCalls::TakeAll() {
  std::vector<WaitingCall> taken;
  for (auto& [number, call] : calls_) taken.push_back(std::move(call));
  calls_.clear();
  of_plan_.clear();
  of_job_.clear();
  return taken;
}

bool WaitingCalls::IsUrgent(const PlanKey& key,
                            std::chrono::steady_clock::time_point now) const {
  const auto [begin, end] = of_plan_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    if (calls_.at(it->second).hurry_at <= now) return true;
  }
  return false;
}

std::vector<PlanKey> WaitingCalls::Keys() const {
  std::vector<PlanKey> keys;
  for (auto it = of_plan_.begin(); it != of_plan_.end();
       it = of_plan_.upper_bound(keys.back())) {
    keys.push_back(it->first);
  }
  return keys;
}

std::vector<PlanKey> WaitingCalls::Keys(const std::string& job,
                                        int64_t last) const {
  constexpr auto kFirst = std::numeric_limits<int64_t>::min();
  std::vector<PlanKey> keys;
  for (auto it = of_plan_.lower_bound({.job = job,
                 .step = kFirst,
                 .replica = INT32_MIN,
                 .attempt = kFirst});
       it != of_plan_.end() && it->first.job == job && it->first.step <= last;
       it = of_plan_.upper_bound(keys.back())) {
    keys.push_back(it->first);
  }
  return keys;
}

int32_t WaitingCalls::size(const std::string& job) const {
  const auto found = of_job_.find(job);
  return found == of_job_.end() ? 0 : found->second;
}

}  // namespace pipeloom::service
