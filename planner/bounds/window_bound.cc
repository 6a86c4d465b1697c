#include "planner/bounds/window_bound.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/bounds/memory_bound.h"
#include "planner/bounds/ramp_bound.h"

namespace pipeloom::planner {
namespace {

constexpr int64_t kNever = INT64_MIN / 4;
// The most passes over all ranks for one assumed step time.
constexpr int kMaxPasses = 60;
constexpr int32_t kMoments = 64;
// The search for the largest refuted step time ends at one part in this many.
constexpr int64_t kPrecision = 10'000;
// The first step beyond the known bound is one part in this many of it.
constexpr int64_t kFirstStep = 256;

enum class Verdict : uint8_t { kRefuted, kOpen, kStopped };

class Windows {
 public:
  Windows(const FlatGraph& graph, const SearchBudget& budget)
      : g_(graph),
        budget_(budget),
        tasks_(static_cast<size_t>(graph.num_ranks)) {
    for (int32_t t = 0; t < g_.num_tasks; ++t) {
      tasks_[g_.rank[t]].push_back(t);
    }
  }

  Verdict Refute(int64_t time, absl::Span<const int64_t> head,
                 absl::Span<const int64_t> tail) {
    head_.assign(head.begin(), head.end());
    tail_.assign(tail.begin(), tail.end());
    for (int pass = 0; pass < kMaxPasses; ++pass) {
      if (!Propagate(time)) return Verdict::kRefuted;
      bool changed = false;
      for (const std::vector<int32_t>& tasks : tasks_) {
        if (Stopped()) return Verdict::kStopped;
        if (!FindEdges(tasks, time, head_, tail_, &changed) ||
            !FindEdges(tasks, time, tail_, head_, &changed)) {
          return Verdict::kRefuted;
        }
      }
      if (!changed) break;
    }
    return RampBound(g_, head_, tail_, time, kMoments) > time ||
                   MemoryBound(g_, head_, tail_, time, kMoments) > time
               ? Verdict::kRefuted
               : Verdict::kOpen;
  }

 private:
  bool Stopped() const { return budget_.Exhausted(0); }

  // Propagates along the dependencies. Returns false if a window is empty.
  bool Propagate(int64_t time) {
    for (int32_t t = 0; t < g_.num_tasks; ++t) {
      for (int32_t e = g_.pred_offset[t]; e < g_.pred_offset[t + 1]; ++e) {
        const int32_t p = g_.pred[e];
        head_[t] =
            std::max(head_[t], head_[p] + g_.duration[p] + g_.pred_delay[e]);
      }
    }
    for (int32_t t = g_.num_tasks - 1; t >= 0; --t) {
      for (int32_t e = g_.succ_offset[t]; e < g_.succ_offset[t + 1]; ++e) {
        const int32_t s = g_.succ[e];
        tail_[t] =
            std::max(tail_[t], g_.succ_delay[e] + g_.duration[s] + tail_[s]);
      }
      if (head_[t] + g_.duration[t] + tail_[t] > time) return false;
    }
    return true;
  }

  // Raises the heads of one rank's tasks; with heads and tails exchanged,
  // raises the tails. Returns false if the tasks do not fit their windows.
  bool FindEdges(const std::vector<int32_t>& tasks, int64_t time,
                 std::vector<int64_t>& head, const std::vector<int64_t>& tail,
                 bool* changed) {
    const size_t n = tasks.size();
    order_.assign(tasks.begin(), tasks.end());
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return std::pair(head[a], a) < std::pair(head[b], b);
    });
    release_.resize(n);
    deadline_.resize(n);
    length_.resize(n);
    raised_.resize(n);
    ends_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      release_[i] = raised_[i] = head[order_[i]];
      deadline_[i] = time - tail[order_[i]];
      length_[i] = g_.duration[order_[i]];
    }
    limits_.assign(deadline_.begin(), deadline_.end());
    std::sort(limits_.begin(), limits_.end());
    limits_.erase(std::unique(limits_.begin(), limits_.end()), limits_.end());
    for (const int64_t limit : limits_) {
      // For the tasks that must end by `limit`: `load` is the time of those
      // released no earlier than task i, `end` the earliest time by which any
      // such suffix can end.
      int64_t load = 0;
      int64_t end = kNever;
      for (size_t i = n; i-- > 0;) {
        if (deadline_[i] <= limit) {
          load += length_[i];
          end = std::max(end, release_[i] + load);
          if (end > limit) return false;
        }
        ends_[i] = end;
      }
      int64_t latest = kNever;
      for (size_t i = 0; i < n; ++i) {
        if (deadline_[i] <= limit) {
          latest = std::max(latest, release_[i] + load);
          load -= length_[i];
          continue;
        }
        if (load > 0 && release_[i] + load + length_[i] > limit) {
          raised_[i] = std::max(raised_[i], ends_[i]);
        }
        if (latest + length_[i] > limit) raised_[i] = std::max(raised_[i], end);
      }
    }
    for (size_t i = 0; i < n; ++i) {
      if (raised_[i] <= release_[i]) continue;
      head[order_[i]] = raised_[i];
      *changed = true;
    }
    return true;
  }

  const FlatGraph& g_;
  const SearchBudget& budget_;
  std::vector<std::vector<int32_t>> tasks_{};  // Indexed by rank.
  std::vector<int64_t> head_{};
  std::vector<int64_t> tail_{};
  // State of FindEdges, indexed by place in the order of heads.
  std::vector<int32_t> order_{};
  std::vector<int64_t> release_{};
  std::vector<int64_t> deadline_{};
  std::vector<int64_t> length_{};
  std::vector<int64_t> raised_{};
  std::vector<int64_t> ends_{};
  std::vector<int64_t> limits_{};
};

}  // namespace

int64_t WindowBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                    absl::Span<const int64_t> tail, int64_t known,
                    const SearchBudget& budget) {
  if (graph.num_tasks == 0) return known;
  Windows windows(graph, budget);
  int64_t bound = known;
  int64_t tried = 0;
  // Refutes `bound` and raises it, in growing steps first, then by bisection.
  int64_t step = std::max<int64_t>(1, known / kFirstStep);
  int64_t open = kNoLimit;
  while (bound < open && !budget.Exhausted(tried)) {
    const int64_t time =
        open == kNoLimit ? (bound == known && tried == 0 ? bound : bound + step)
                         : bound + (open - bound) / 2;
    const Verdict verdict = windows.Refute(time, head, tail);
    ++tried;
    if (verdict == Verdict::kStopped) break;
    if (verdict == Verdict::kRefuted) {
      if (open == kNoLimit && tried > 1) step *= 2;
      bound = time + 1;
    } else {
      open = time;
      if (open - bound <= bound / kPrecision) break;
    }
  }
  return bound;
}

}  // namespace pipeloom::planner
