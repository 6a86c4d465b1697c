// Quantities as types: simulated time, bytes, operations, rates.
//
// Simulated time is integer nanoseconds on our own clock, so sums do not
// depend on their order and wall time cannot slip in. Where types are lost
// (proto, JSON, flags) the unit ends the name: `step_time_us`, `peak_bytes`.
#ifndef PIPELOOM_BASE_UNITS_H_
#define PIPELOOM_BASE_UNITS_H_

#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace pipeloom {

// The clock of emulated steps: no epoch, no now(); time 0 is the step's start.
struct SimClock {
  using rep = int64_t;
  using period = std::nano;
  using duration = std::chrono::duration<rep, period>;
  using time_point = std::chrono::time_point<SimClock>;
  static constexpr bool is_steady = true;
};
using Duration = SimClock::duration;
using SimTime = SimClock::time_point;

inline constexpr Duration kZero{};
inline constexpr SimTime kStepStart{};

constexpr Duration Nanoseconds(int64_t count) { return Duration(count); }
// The nearest nanosecond.
inline Duration Microseconds(double count) {
  return Duration(std::llround(count * 1e3));
}
inline Duration Milliseconds(double count) {
  return Duration(std::llround(count * 1e6));
}
inline Duration Seconds(double count) {
  return Duration(std::llround(count * 1e9));
}
constexpr double ToMicroseconds(Duration d) {
  return static_cast<double>(d.count()) / 1e3;
}
constexpr double ToMilliseconds(Duration d) {
  return static_cast<double>(d.count()) / 1e6;
}
constexpr double ToSeconds(Duration d) {
  return static_cast<double>(d.count()) / 1e9;
}
constexpr double ToMicroseconds(SimTime t) {
  return ToMicroseconds(t.time_since_epoch());
}

// A count of Unit as a type of its own: adds to itself, scales by integers.
template <typename Unit>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(int64_t count) : count_(count) {}
  constexpr int64_t count() const { return count_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.count_ + b.count_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.count_ - b.count_);
  }
  friend constexpr Quantity operator-(Quantity a) {
    return Quantity(-a.count_);
  }
  friend constexpr Quantity operator*(Quantity a, int64_t k) {
    return Quantity(a.count_ * k);
  }
  friend constexpr Quantity operator*(int64_t k, Quantity a) { return a * k; }
  constexpr Quantity& operator+=(Quantity other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    count_ -= other.count_;
    return *this;
  }

  template <typename H>
  friend H AbslHashValue(H state, Quantity q) {
    return H::combine(std::move(state), q.count_);
  }

 private:
  int64_t count_ = 0;
};
using Bytes = Quantity<struct BytesUnit>;
using Tokens = Quantity<struct TokensUnit>;

inline constexpr Bytes kGibibyte{int64_t{1} << 30};

// Floating-point operations. Floating, as one step has over 2^63 of them.
struct Flops {
  double count = 0;
  friend constexpr auto operator<=>(Flops, Flops) = default;
  friend constexpr Flops operator+(Flops a, Flops b) {
    return {a.count + b.count};
  }
  constexpr Flops& operator+=(Flops other) {
    count += other.count;
    return *this;
  }
  friend constexpr Flops operator*(Flops a, double k) { return {a.count * k}; }
};

struct FlopRate {
  double flops_per_second = 0;
  friend constexpr auto operator<=>(FlopRate, FlopRate) = default;
};
struct Bandwidth {
  double bytes_per_second = 0;
  friend constexpr auto operator<=>(Bandwidth, Bandwidth) = default;
};

// Time of `work` at `rate`, rounded up to the nanosecond. A rate of 0 means
// "no limit": zero time.
inline Duration ComputeTime(Flops work, FlopRate rate) {
  if (rate.flops_per_second <= 0) return kZero;
  return Duration(static_cast<int64_t>(
      std::ceil(work.count / rate.flops_per_second * 1e9)));
}
inline Duration TransferTime(Bytes size, Bandwidth bandwidth) {
  if (bandwidth.bytes_per_second <= 0) return kZero;
  return Duration(static_cast<int64_t>(std::ceil(
      static_cast<double>(size.count()) / bandwidth.bytes_per_second * 1e9)));
}

// "1.234 ms", "17.3 s"; "1.50 GiB", "512 B". For people.
std::string FormatDuration(Duration d);
std::string FormatBytes(Bytes b);
// Rounds up or down to a size that FormatBytes gives exactly, as limits are
// that people pass back.
Bytes RoundUpAsFormatted(Bytes b);
Bytes RoundDownAsFormatted(Bytes b);

}  // namespace pipeloom

#endif  // PIPELOOM_BASE_UNITS_H_
