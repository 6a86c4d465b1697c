// Wall time as one rank lives it: waits that end on time although the thread
// wakes up late.
//
// A sleeping thread wakes up some microseconds late, and milliseconds late
// when there are more ranks than cores. A device does not: its queue of
// launched work hides a late host. So each rank keeps its `progress`, the time
// it would have if every wait ended exactly, and the next wait counts from
// there. Rules that keep this honest:
// - progress never runs ahead of wall time: a wait returns only when wall time
//   has come;
// - progress falls behind wall time by `max_lag` at most; lateness beyond that
//   is lost and lengthens the step;
// - traces hold wall times, lateness included.
// So a step can end early by nothing and late by `max_lag` for free.
//
// One object per rank, used by the rank's thread only.
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

// Plan time as wall time: `scale` wall nanoseconds a plan nanosecond.
WallDuration ToWall(Duration d, double scale);

class RankClock {
 public:
  struct Options {
    double time_scale = 1;
    WallDuration max_lag{};
    std::stop_token stop{};
  };
  explicit RankClock(Options options);

  // Sets the step's start and waits for it. Call this before anything else.
  absl::Status Start(WallTime step_start);

  // max(progress, wall time - max_lag).
  WallTime Progress();

  // The wall time now, to which the progress is set: what the rank has waited
  // for came just now.
  WallTime Reach();

  // Returns once wall time has reached `until`, and sets the progress to it;
  // at once if it has passed already. Sleeps until shortly before, by as much
  // as its sleeps have been late, then yields, then spins. Cancelled within
  // 10 ms of a stop request.
  absl::Status WaitUntil(WallTime until);

  // Progress() plus a plan duration, waited for.
  absl::Status Spend(Duration d) {
    return WaitUntil(Progress() + ToWall(d, options_.time_scale));
  }

  // The wall time now, on the plan's clock.
  SimTime Now() const { return ToSim(WallNow()); }
  SimTime ToSim(WallTime t) const;
  double time_scale() const { return options_.time_scale; }

 private:
  void NoteSleep(WallDuration late);

  Options options_;
  WallDuration early_;  // Before its time a sleep ends.
  WallTime step_start_{};
  WallTime progress_{};
};

// Asks the kernel to wake this thread on time rather than in batches. Linux;
// elsewhere it does nothing. Called once by each rank's thread.
void AskForPreciseSleep();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_RANK_CLOCK_H_
