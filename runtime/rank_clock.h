// A rank's clock, whose waits do not accumulate the lateness of thread
// wake-ups.
//
// A sleeping thread wakes up some microseconds late, and milliseconds late
// when there are more ranks than cores. A device does not: its queue of
// launched work hides a late host. So each rank keeps its `progress`, the time
// it would have if every wait ended exactly, and the next wait counts from
// there. Rules that keep this honest:
// - progress never runs ahead of wall time: a wait returns only when wall time
//   has reached it;
// - progress falls behind wall time by `max_lag` at most; lateness beyond that
//   lengthens the step;
// - traces hold wall times, lateness included.
// So a step never ends early, and up to `max_lag` of lateness is hidden.
#ifndef PIPELOOM_RUNTIME_RANK_CLOCK_H_
#define PIPELOOM_RUNTIME_RANK_CLOCK_H_

#include <chrono>
#include <stop_token>

#include "absl/status/status.h"
#include "base/units.h"

namespace pipeloom::runtime {

using WallTime = std::chrono::steady_clock::time_point;
using WallDuration = std::chrono::nanoseconds;

inline WallTime WallNow() { return std::chrono::steady_clock::now(); }

// Converts plan time to wall time: `scale` wall nanoseconds per plan
// nanosecond.
WallDuration ToWall(Duration d, double scale);

// The clock of one rank, used by the rank's thread only.
class RankClock {
 public:
  struct Options {
    double time_scale = 1;
    WallDuration max_lag{};
    std::stop_token stop{};
  };
  explicit RankClock(Options options);

  // Sets the step's start and waits for it. Call it before all others.
  absl::Status Start(WallTime step_start);

  // Returns the progress, at least wall time - max_lag.
  WallTime Progress();

  // Sets the progress to the current wall time and returns it, for a wait whose
  // object has come this moment.
  WallTime Reach();

  // Waits until wall time has reached `until`, and raises the progress to it.
  // Sleeps until shortly before `until`, by as much as its sleeps have been
  // late, then yields, then spins. Returns Cancelled within 10 ms of a stop
  // request.
  absl::Status WaitUntil(WallTime until);

  // Waits until Progress() plus a plan duration.
  absl::Status Spend(Duration d) {
    return WaitUntil(Progress() + ToWall(d, options_.time_scale));
  }

  // Returns the current wall time on the plan's clock.
  SimTime Now() const { return ToSim(WallNow()); }
  // Converts a wall time to the plan's clock.
  SimTime ToSim(WallTime t) const;
  double time_scale() const { return options_.time_scale; }

 private:
  void NoteSleep(WallDuration late);

  Options options_;
  WallDuration early_;  // How long before the end of a wait its sleep ends.
  WallTime step_start_{};
  WallTime progress_{};
};

// Asks the kernel to wake the calling thread on time rather than in batches.
// Linux; elsewhere it does nothing. Each rank's thread calls it once.
void AskForPreciseSleep();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_RANK_CLOCK_H_
