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

class CommitPoint {
 public:
  explicit CommitPoint(int32_t num_ranks) : missing_(num_ranks) {}

  // Says that a rank has come this far. Once per rank.
  void Arrive();
  // Blocks until all ranks have arrived. Abort's reason; DeadlineExceeded.
  absl::Status Wait(WallTime deadline);
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
