#include "planner/memory/range_minimum.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace pipeloom::planner {
namespace {

TEST(RangeMinimum, IsTheLeastOfEveryRun) {
  Random random(1);
  RangeMinimum minimum;  // Filled anew with more and with fewer numbers.
  for (const size_t size : {1, 2, 3, 8, 33, 5, 64, 17, 0, 4}) {
    std::vector<int64_t> numbers(size);
    for (int64_t& number : numbers) number = random.Between(-50, 50);
    minimum.Fill(size, [&](size_t i) { return numbers[i]; });
    for (size_t first = 0; first < size; ++first) {
      for (size_t end = first + 1; end <= size; ++end) {
        EXPECT_EQ(
            minimum.Of(first, end),
            *std::min_element(numbers.begin() + first, numbers.begin() + end));
      }
    }
  }
}

}  // namespace
}  // namespace pipeloom::planner
