// Sorting of tasks by integer keys without comparisons: in a search whose keys
// change each time, std::sort spends most of its time on mispredicted branches.
#ifndef PIPELOOM_PLANNER_CORE_SORT_BY_KEY_H_
#define PIPELOOM_PLANNER_CORE_SORT_BY_KEY_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

// Sorts, and keeps the workspace between sorts. Use one per thread.
class KeySorter {
 public:
  // Sets `order` to the indices of `key` in ascending order of keys, ties by
  // index. O(n x bytes of the largest difference of keys). REQUIRES: the keys
  // differ by less than 2^63.
  void Sort(absl::Span<const int64_t> key, std::vector<int32_t>* order);

 private:
  struct Item {
    uint64_t key = 0;
    int32_t index = 0;
  };
  std::vector<Item> items_{};
  std::vector<Item> sorted_{};
  // Indexed by byte and value.
  std::array<std::array<uint32_t, 256>, 8> count_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_SORT_BY_KEY_H_
