#include "runtime/run_steps.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

// Holds one plan between the thread that fetches and the one that runs.
class Slot {
 public:
  // Returns false if no further plan is wanted.
  bool Put(absl::StatusOr<SharedPlan> plan) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !plan_.has_value() || closed_; });
    if (closed_) return false;
    plan_ = std::move(plan);
    changed_.notify_all();
    return true;
  }
  absl::StatusOr<SharedPlan> Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return plan_.has_value(); });
    absl::StatusOr<SharedPlan> plan = *std::move(plan_);
    plan_.reset();
    changed_.notify_all();
    return plan;
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::optional<absl::StatusOr<SharedPlan>> plan_{};
  bool closed_ = false;
};

}  // namespace

absl::Status RunSteps(int64_t steps, const PlanFeed& feed,
                      const StepRunner& run, const StepSink& sink) {
  Slot slot;
  std::jthread fetcher([&] {
    for (int64_t i = 0; i < steps; ++i) {
      absl::StatusOr<SharedPlan> plan = feed(i);
      const bool ok = plan.ok();
      if (!slot.Put(std::move(plan)) || !ok) return;
    }
  });
  absl::Status status;
  for (int64_t i = 0; i < steps && status.ok(); ++i) {
    status = [&]() -> absl::Status {
      PIPELOOM_ASSIGN_OR_RETURN(const SharedPlan plan, slot.Take());
      PIPELOOM_ASSIGN_OR_RETURN(StepTrace trace, run(plan));
      return sink(i, plan, std::move(trace));
    }();
  }
  slot.Close();
  return status;
}

}  // namespace pipeloom::runtime
