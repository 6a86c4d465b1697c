#include "planner/core/sort_by_key.h"

#include <algorithm>
#include <bit>

namespace pipeloom::planner {

void KeySorter::Sort(absl::Span<const int64_t> key,
                     std::vector<int32_t>* order) {
  order->resize(key.size());
  if (key.empty()) return;
  const auto [least, most] = std::minmax_element(key.begin(), key.end());
  const auto reach = static_cast<uint64_t>(*most - *least);
  const int bytes = (static_cast<int>(std::bit_width(reach)) + 7) / 8;
  for (int b = 0; b < bytes; ++b) count_[b].fill(0);
  items_.resize(key.size());
  sorted_.resize(key.size());
  for (size_t i = 0; i < key.size(); ++i) {
    const auto k = static_cast<uint64_t>(key[i] - *least);
    items_[i] = {.key = k, .index = static_cast<int32_t>(i)};
    for (int b = 0; b < bytes; ++b) ++count_[b][k >> (8 * b) & 255];
  }
  // Sorts by the least significant byte first; each pass keeps the order of
  // equals.
  for (int b = 0; b < bytes; ++b) {
    uint32_t before = 0;
    for (uint32_t& count : count_[b]) {
      const uint32_t here = count;
      count = before;
      before += here;
    }
    for (const Item& item : items_) {
      sorted_[count_[b][item.key >> (8 * b) & 255]++] = item;
    }
    items_.swap(sorted_);
  }
  for (size_t i = 0; i < items_.size(); ++i) (*order)[i] = items_[i].index;
}

}  // namespace pipeloom::planner
