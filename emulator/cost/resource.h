// Network cards that divide their rate among concurrent transfers.
#ifndef PIPELOOM_EMULATOR_COST_RESOURCE_H_
#define PIPELOOM_EMULATOR_COST_RESOURCE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace pipeloom::emulator {

// Flows that share links. A flow leaves by one link and enters by another; with
// n flows on the fuller of the two it moves at 1/n of its full rate. Times are
// integers: the remaining work is kept in units of 1/720720 ns, a number that 1
// to 16 divide, and a flow is over at the first nanosecond by which nothing is
// left.
class FairLinks {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Removes all flows and sets the time to 0.
  void Reset(int32_t num_links) {
    load_.assign(static_cast<size_t>(num_links), 0);
    flows_.clear();
    at_ = 0;
    next_ = kNever;
  }

  // Starts a flow. REQUIRES: `at` is not before that of any earlier call;
  // `work` is at most 2^40 ns.
  void Add(uint32_t edge, int32_t out, int32_t in, int64_t at, int64_t work) {
    Advance(at);
    ++load_[static_cast<size_t>(out)];
    ++load_[static_cast<size_t>(in)];
    flows_.push_back({edge, out, in, work * kShares});
    FindNext();
  }

  // Returns when the first flow is over; kNever without flows.
  int64_t next() const { return next_; }

  // Advances to next() and appends the edges that are over then, sorted by
  // edge.
  void Finish(std::vector<uint32_t>* edges) {
    Advance(next_);
    const size_t first = edges->size();
    std::erase_if(flows_, [&](const Flow& flow) {
      if (flow.left > 0) return false;
      --load_[static_cast<size_t>(flow.out)];
      --load_[static_cast<size_t>(flow.in)];
      edges->push_back(flow.edge);
      return true;
    });
    std::sort(edges->begin() + static_cast<long>(first), edges->end());
    FindNext();
  }

 private:
  static constexpr int64_t kShares = 720720;  // lcm(1..16)

  struct Flow {
    uint32_t edge = 0;
    int32_t out = 0;
    int32_t in = 0;
    int64_t left = 0;
  };

  int64_t Load(const Flow& flow) const {
    return std::max(load_[static_cast<size_t>(flow.out)],
                    load_[static_cast<size_t>(flow.in)]);
  }
  void Advance(int64_t at) {
    const int64_t elapsed = at - at_;
    at_ = at;
    if (elapsed == 0) return;
    for (Flow& flow : flows_) {
      // In two parts, so that a long time does not overflow.
      const int64_t load = Load(flow);
      flow.left -=
          elapsed * (kShares / load) + elapsed * (kShares % load) / load;
    }
  }
  void FindNext() {
    next_ = kNever;
    for (const Flow& flow : flows_) {
      const int64_t load = Load(flow);
      // The first time at which Advance's sum reaches `left`.
      int64_t wait = std::max<int64_t>(0, flow.left) / kShares * load;
      const int64_t rest = flow.left % kShares;
      if (rest > 0) wait += (rest * load + kShares - 1) / kShares;
      const auto moved = [&](int64_t t) {
        return t * (kShares / load) + t * (kShares % load) / load;
      };
      while (moved(wait) < flow.left) ++wait;
      next_ = std::min(next_, at_ + wait);
    }
  }

  std::vector<int64_t> load_{};  // Number of flows, indexed by link.
  std::vector<Flow> flows_{};
  int64_t at_ = 0;
  int64_t next_ = kNever;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_RESOURCE_H_
