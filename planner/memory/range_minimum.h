// The least of any run of consecutive numbers, by a table of runs whose lengths
// are powers of two.
//
// Cost: O(n log n) to fill, O(1) to ask. Not thread-safe.
#ifndef PIPELOOM_PLANNER_MEMORY_RANGE_MINIMUM_H_
#define PIPELOOM_PLANNER_MEMORY_RANGE_MINIMUM_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipeloom::planner {

class RangeMinimum {
 public:
  // Fills the table for `size` numbers; `number(i)` returns one of them. Reuses
  // its memory.
  template <typename Number>
  void Fill(size_t size, const Number& number) {
    size_ = size;
    least_.resize(size * static_cast<size_t>(std::bit_width(size)));
    for (size_t i = 0; i < size; ++i) least_[i] = number(i);
    size_t level = 0;
    for (size_t half = 1; 2 * half <= size; half *= 2) {
      const int64_t* const from = least_.data() + size * level++;
      int64_t* const to = least_.data() + size * level;
      for (size_t i = 0; i + 2 * half <= size; ++i) {
        to[i] = std::min(from[i], from[i + half]);
      }
    }
  }

  // Returns the least of the numbers [first, end). REQUIRES: first < end <=
  // size.
  int64_t Of(size_t first, size_t end) const {
    const auto level = static_cast<size_t>(std::bit_width(end - first) - 1);
    const int64_t* const least = least_.data() + size_ * level;
    return std::min(least[first], least[end - (size_t{1} << level)]);
  }

 private:
  size_t size_ = 0;
  // At size_ * k + i: the least of the 2^k numbers from i on.
  std::vector<int64_t> least_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_RANGE_MINIMUM_H_
