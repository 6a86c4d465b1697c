// The barrier that all ranks reach before any of them steps its optimizer, so
// that a step that fails on any rank before it is applied on no rank. Threads:
// any.
#ifndef PIPELOOM_RUNTIME_COMMIT_POINT_H_
#define PIPELOOM_RUNTIME_COMMIT_POINT_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// One rank's view of the barrier.
class CommitGate {
 public:
  virtual ~CommitGate() = default;
  // Reports that a rank has reached the barrier. Call once per rank and step.
  virtual void Arrive() = 0;
  // Blocks until all ranks have arrived. Returns the reason why they cannot, or
  // DeadlineExceeded.
  virtual absl::Status Wait(WallTime deadline) = 0;
};

// A barrier between threads, for one step.
class CommitPoint final : public CommitGate {
 public:
  explicit CommitPoint(int32_t num_ranks) : missing_(num_ranks) {}

  void Arrive() override;
  absl::Status Wait(WallTime deadline) override;
  // Makes all waits fail with `reason`; only the first call counts. Returns
  // false and changes nothing if all ranks have arrived: then all of them step.
  bool Abort(absl::Status reason);

 private:
  Mutex mutex_{};
  CondVar changed_{};
  int32_t missing_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_COMMIT_POINT_H_
