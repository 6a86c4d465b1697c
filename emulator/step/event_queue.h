// Queue of the ranks that can go on, by the time at which they can; ties by
// rank. Each rank is in it at most once.
#ifndef PIPELOOM_EMULATOR_STEP_EVENT_QUEUE_H_
#define PIPELOOM_EMULATOR_STEP_EVENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipeloom::emulator {

// The time at which a rank can go on.
struct RankEvent {
  int64_t at = 0;  // Nanoseconds.
  int32_t rank = 0;
  bool operator==(const RankEvent&) const = default;
  // Without branches, which could not be predicted.
  friend bool operator<(const RankEvent& a, const RankEvent& b) {
    return ((a.at < b.at) | ((a.at == b.at) & (a.rank < b.rank))) != 0;
  }
};

// A binary heap; each call moves a hole up or down, and the event into it.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  void clear() { heap_.clear(); }
  // Returns the first event. REQUIRES: not empty.
  const RankEvent& next() const { return heap_.front(); }
  void Push(RankEvent event) {
    size_t at = heap_.size();
    heap_.emplace_back();
    RankEvent* const heap = heap_.data();
    while (at > 0) {
      const size_t parent = (at - 1) / 2;
      if (!(event < heap[parent])) break;
      heap[at] = heap[parent];
      at = parent;
    }
    heap[at] = event;
  }
  // Removes and returns the first event. REQUIRES: not empty.
  RankEvent Pop() {
    const RankEvent first = heap_.front();
    const RankEvent last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) Sink(last);
    return first;
  }
  // Does Pop, then Push, in one. REQUIRES: not empty.
  RankEvent Exchange(RankEvent event) {
    const RankEvent first = heap_.front();
    Sink(event);
    return first;
  }

 private:
  // Moves `event` from the top, in place of the first, to its position.
  void Sink(RankEvent event) {
    RankEvent* const heap = heap_.data();
    const size_t size = heap_.size();
    size_t at = 0;
    while (true) {
      size_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size) {
        child += static_cast<size_t>(heap[child + 1] < heap[child]);
      }
      if (!(heap[child] < event)) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = event;
  }

  std::vector<RankEvent> heap_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_EVENT_QUEUE_H_
