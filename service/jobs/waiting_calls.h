// The calls that wait for plans.
#ifndef PIPELOOM_SERVICE_JOBS_WAITING_CALLS_H_
#define PIPELOOM_SERVICE_JOBS_WAITING_CALLS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/jobs/ready_plan.h"
#include "service/plans/plan_ahead.h"

namespace pipeloom::service {

using PlanPtr = std::shared_ptr<const ReadyPlan>;
// A plan, or the reason why there is none.
using PlanOrError = absl::StatusOr<PlanPtr>;

struct WaitingCall {
  PlanKey key{};
  int32_t rank = -1;  // -1: the whole plan.
  // From then on the plan is wanted without further search.
  std::chrono::steady_clock::time_point hurry_at{};
  std::function<void(PlanOrError)> done{};
};

// Calls by number and by plan. Not thread-safe. O(log n), and O(result) for
// lists.
class WaitingCalls {
 public:
  // Returns the call's number, which is above 0.
  int64_t Add(WaitingCall call);
  // Take out a call, the calls for a plan, and all calls.
  std::optional<WaitingCall> Take(int64_t number);
  std::vector<WaitingCall> Take(const PlanKey& key);
  std::vector<WaitingCall> TakeAll();

  bool Contains(int64_t number) const { return calls_.contains(number); }
  bool Contains(const PlanKey& key) const { return of_plan_.contains(key); }
  // Returns whether a call for the plan is to be hurried by `now`.
  bool IsUrgent(const PlanKey& key,
                std::chrono::steady_clock::time_point now) const;
  // Return the plans that calls wait for, sorted, each once. The second returns
  // only those of one job whose step is at most `last`.
  std::vector<PlanKey> Keys() const;
  std::vector<PlanKey> Keys(const std::string& job, int64_t last) const;
  int32_t size() const { return static_cast<int32_t>(calls_.size()); }
  int32_t size(const std::string& job) const;

 private:
  void Leave(const WaitingCall& call);

  std::map<int64_t, WaitingCall> calls_{};
  std::multimap<PlanKey, int64_t> of_plan_{};
  std::map<std::string, int32_t> of_job_{};  // Number of calls; at least 1.
  int64_t next_ = 1;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_WAITING_CALLS_H_
