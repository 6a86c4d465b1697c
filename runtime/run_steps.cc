#include "runtime/run_steps.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

// Holds one plan between the thread that fetches and the one that runs.
class Slot {
 public:
  // Returns false if no further plan is wanted.
  bool Put(absl::StatusOr<SharedPlan> plan) {
    const MutexLock lock(&mutex_);
    changed_.Wait(&mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !plan_.has_value() || closed_;
    });
    if (closed_) return false;
    plan_ = std::move(plan);
    changed_.NotifyAll();
    return true;
  }
  absl::StatusOr<SharedPlan> Take() {
    const MutexLock lock(&mutex_);
    changed_.Wait(&mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return plan_.has_value();
    });
    absl::StatusOr<SharedPlan> plan = *std::move(plan_);
    plan_.reset();
    changed_.NotifyAll();
    return plan;
  }
  void Close() {
    const MutexLock lock(&mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_{};
  CondVar changed_{};
  std::optional<absl::StatusOr<SharedPlan>> plan_ ABSL_GUARDED_BY(mutex_){};
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
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
