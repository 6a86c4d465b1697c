// Where all ranks meet before any of them steps its optimizer: a step that
// fails anywhere before that is applied nowhere. Threads: any.
#ifndef PIPELOOM_RUNTIME_COMMIT_POINT_H_
#define PIPELOOM_RUNTIME_COMMIT_POINT_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// One rank's view of it.
class CommitGate {
 public:
  virtual ~CommitGate() = default;
  // Says that a rank has come this far. Once per rank and step.
  virtual void Arrive() = 0;
  // Blocks until all ranks have arrived. The reason for which they cannot;
  // DeadlineExceeded.
  virtual absl::Status Wait(WallTime deadline) = 0;
};

// Between threads, for one step.
class CommitPoint final : public CommitGate {
 public:
  explicit CommitPoint(int32_t num_ranks) : missing_(num_ranks) {}

  void Arrive() override;
  absl::Status Wait(WallTime deadline) override;
  // Lets all waits fail; the first call counts. False, and nothing changes,
  // when everyone has arrived: then all step.
  bool Abort(absl::Status reason);

 private:
  std::mutex mutex_{};
  std::condition_variable changed_{};
  int32_t missing_;
  absl::Status aborted_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_COMMIT_POINT_H_
