// Small integer and conversion helpers.
#ifndef PIPELOOM_BASE_NUMERIC_H_
#define PIPELOOM_BASE_NUMERIC_H_

#include <cstdint>

namespace pipeloom {

// The quotient rounded up. REQUIRES: a >= 0, b > 0, a + b does not overflow.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A count as a double; exact up to 2^53.
constexpr double Real(int64_t value) { return static_cast<double>(value); }

}  // namespace pipeloom

#endif  // PIPELOOM_BASE_NUMERIC_H_
