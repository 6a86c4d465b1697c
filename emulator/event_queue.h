// Ranks that can go on, by the time at which they can; ties by rank. Each rank
// is in it at most once.
#ifndef PIPELOOM_EMULATOR_EVENT_QUEUE_H_
#define PIPELOOM_EMULATOR_EVENT_QUEUE_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pipeloom::emulator {

struct RankEvent {
  int64_t at = 0;  // Nanoseconds.
  int32_t rank = 0;
  auto operator<=>(const RankEvent&) const = default;
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  void clear() { heap_.clear(); }
  // REQUIRES: not empty.
  const RankEvent& next() const { return heap_.front(); }
  void Push(RankEvent event) {
    heap_.push_back(event);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  // REQUIRES: not empty.
  RankEvent Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const RankEvent event = heap_.back();
    heap_.pop_back();
    return event;
  }
  // Pop, then Push, in one. REQUIRES: not empty.
  RankEvent Exchange(RankEvent event) {
    const RankEvent first = heap_.front();
    const size_t size = heap_.size();
    size_t at = 0;
    while (true) {
      size_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < event)) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = event;
    return first;
  }

 private:
  std::vector<RankEvent> heap_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_EVENT_QUEUE_H_
