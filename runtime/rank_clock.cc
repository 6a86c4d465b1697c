#include "runtime/rank_clock.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <thread>
#include <utility>

#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace pipeloom::runtime {
namespace {

// A sleep ends this long before its time, and longer where sleeps have ended
// late; the rest is yielded to whoever wants the core, and at the very end
// spun. Ranks that share a core hand it to each other in that time.
constexpr WallDuration kShortestYield = std::chrono::microseconds(50);
constexpr WallDuration kLongestYield = std::chrono::microseconds(400);
constexpr WallDuration kSpin = std::chrono::microseconds(15);
// A stop request is seen after this long at the latest.
constexpr WallDuration kLongestSleep = std::chrono::milliseconds(10);

void SleepUntil(WallTime until) {
#ifdef __linux__
  // steady_clock is CLOCK_MONOTONIC in libstdc++ and libc++ on Linux.
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(
      until.time_since_epoch());
  timespec at{};
  at.tv_sec = static_cast<time_t>(since.count() / 1'000'000'000);
  at.tv_nsec = static_cast<long>(since.count() % 1'000'000'000);
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
#else
  std::this_thread::sleep_until(until);
#endif
}

}  // namespace

WallDuration ToWall(Duration d, double scale) {
  return WallDuration(std::llround(static_cast<double>(d.count()) * scale));
}

RankClock::RankClock(Options options)
    : options_(std::move(options)), early_(kShortestYield) {}

absl::Status RankClock::Start(WallTime step_start) {
  step_start_ = step_start;
  progress_ = step_start;
  return WaitUntil(step_start);
}

WallTime RankClock::Progress() {
  progress_ = std::max(progress_, WallNow() - options_.max_lag);
  return progress_;
}

WallTime RankClock::Reach() {
  progress_ = std::max(progress_, WallNow());
  return progress_;
}

absl::Status RankClock::WaitUntil(WallTime until) {
  for (WallTime now = WallNow(); now < until; now = WallNow()) {
    if (options_.stop.stop_requested()) {
      return absl::CancelledError("the run was stopped");
    }
    const WallDuration early = early_ + kSpin;
    if (until - now > early) {
      const WallTime wake = std::min(until - early, now + kLongestSleep);
      SleepUntil(wake);
      NoteSleep(WallNow() - wake);
    } else if (until - now > kSpin) {
      std::this_thread::yield();
    }
  }
  progress_ = std::max(progress_, until);
  return absl::OkStatus();
}

// Follows a later wake-up at once, and forgets it within some ten sleeps.
// Ignores sleeps that lasted far longer, as another process caused that.
void RankClock::NoteSleep(WallDuration late) {
  if (late > kLongestYield) return;
  early_ = std::max({kShortestYield, late, early_ - (early_ - late) / 8});
}

SimTime RankClock::ToSim(WallTime t) const {
  const auto elapsed = static_cast<double>((t - step_start_).count());
  return kStepStart + Duration(std::llround(elapsed / options_.time_scale));
}

void AskForPreciseSleep() {
#ifdef __linux__
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
}

}  // namespace pipeloom::runtime
