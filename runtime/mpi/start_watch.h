// A watch over the start of MPI, in which all ranks wait for ever for a rank
// that never comes up.
//
// If the start is not over after `bound`, `late` is called on a thread of the
// watch; as a rule it ends the process. Its status names the ranks of the same
// job on this host that may not come up: stopped ones, those with limited
// address space and those that have ended. Ranks are found by the environment
// that PMIx gives them, in /proc (Linux; elsewhere none is named). Cost: a
// thread that sleeps.
#ifndef PIPELOOM_RUNTIME_MPI_START_WATCH_H_
#define PIPELOOM_RUNTIME_MPI_START_WATCH_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// Watches from Begin to its destruction, which says that the start is over.
class StartWatch {
 public:
  using Late = std::function<void(const absl::Status&)>;
  // Begins to watch. Unavailable: this process cannot even start a thread; the
  // message names the ranks in trouble and their limits.
  static absl::StatusOr<std::unique_ptr<StartWatch>> Begin(WallDuration bound,
                                                           Late late);
  ~StartWatch();

 private:
  StartWatch(WallDuration bound, Late late);
  void Watch();

  WallDuration bound_;
  Late late_;
  Mutex mutex_{};
  CondVar changed_{};
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_{};
};

// Returns this process's name for messages before MPI runs: "rank 2", as the
// starter of the processes has numbered it, or "a rank" if that is not known.
std::string RankBeforeStart();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_MPI_START_WATCH_H_
