// Tasks in the order of integer keys, without a comparison: in a search whose
// keys change each time, what std::sort takes is mostly mispredicted branches.
#ifndef PIPELOOM_PLANNER_CORE_SORT_BY_KEY_H_
#define PIPELOOM_PLANNER_CORE_SORT_BY_KEY_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

// Keeps the workspace between sorts. One per thread.
class KeySorter {
 public:
  // Makes `order` the indices of `key`, the least key first, ties by index.
  // O(n x bytes of the largest difference of keys). REQUIRES: the keys differ
  // by less than 2^63.
  void Sort(absl::Span<const int64_t> key, std::vector<int32_t>* order);

 private:
  struct Item {
    uint64_t key = 0;
    int32_t index = 0;
  };
  std::vector<Item> items_{};
  std::vector<Item> sorted_{};
  std::array<std::array<uint32_t, 256>, 8> count_{};  // By byte and value.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_SORT_BY_KEY_H_
