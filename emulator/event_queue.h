// Ranks that can go on, by the time at which they can; ties by rank. Each rank
// is in it at most once.
#ifndef PIPELOOM_EMULATOR_EVENT_QUEUE_H_
#define PIPELOOM_EMULATOR_EVENT_QUEUE_H_

#include <algorithm>
#include <compare>
#include <functional>
#include <vector>

#include "base/units.h"
#include "ir/ids.h"

namespace pipeloom::emulator {

struct RankEvent {
  SimTime at{};
  RankId rank{};
  auto operator<=>(const RankEvent&) const = default;
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
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

 private:
  std::vector<RankEvent> heap_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_EVENT_QUEUE_H_
