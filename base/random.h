// A small seeded generator that gives the same numbers on every platform and
// with every standard library (whose distributions promise no sequence).
// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014. Not for cryptography. One object per thread.
#ifndef PIPELOOM_BASE_RANDOM_H_
#define PIPELOOM_BASE_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"

namespace pipeloom {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound), without bias. REQUIRES: bound > 0.
  int64_t Below(int64_t bound) {
    PIPELOOM_DCHECK(bound > 0);
    const auto range = static_cast<uint64_t>(bound);
    const uint64_t limit = UINT64_MAX - UINT64_MAX % range;
    uint64_t draw = Next();
    while (draw >= limit) draw = Next();
    return static_cast<int64_t>(draw % range);
  }
  // Uniform in [low, high]. REQUIRES: low <= high.
  int64_t Between(int64_t low, int64_t high) {
    return low + Below(high - low + 1);
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  template <typename T>
  void Shuffle(absl::Span<T> items) {
    for (size_t i = items.size(); i > 1; --i) {
      using std::swap;
      swap(items[i - 1],
           items[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

  // An independent generator, e.g. one for each search tree.
  Random Fork() { return Random(Next() ^ 0xd1b54a32d192ed03u); }

 private:
  uint64_t state_;
};

}  // namespace pipeloom

#endif  // PIPELOOM_BASE_RANDOM_H_
