// Watches the start of MPI, inside which a rank that never comes up lets all
// others wait for ever.
//
// When the start is not over after `bound`, `late` is called on a thread of the
// watch with a status that names the ranks of this host, among those of the
// same job, that cannot come up: stopped ones, those whose address space is
// limited and those that have ended; as a rule `late` ends the process. Ranks
// are found by the environment that PMIx gives them, in /proc (Linux; elsewhere
// none is named). One object around the start. Cost: a thread that sleeps.
#ifndef PIPELOOM_RUNTIME_MPI_START_WATCH_H_
#define PIPELOOM_RUNTIME_MPI_START_WATCH_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

class StartWatch {
 public:
  using Late = std::function<void(const absl::Status&)>;
  // Unavailable: this process cannot even start a thread; says its limits.
  static absl::StatusOr<std::unique_ptr<StartWatch>> Begin(WallDuration bound,
                                                           Late late);
  // The start is over.
  ~StartWatch();

 private:
  StartWatch(WallDuration bound, Late late);
  void Watch();

  WallDuration bound_;
  Late late_;
  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool over_ = false;
  std::thread thread_{};
};

// "rank 2", as the starter of the processes has numbered this one; "a rank"
// where that is not known. For messages before MPI runs.
std::string RankBeforeStart();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_MPI_START_WATCH_H_
