#include "planner/lower_bound.h"

#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

struct Job {
  int64_t head = 0;
  int64_t duration = 0;
  int64_t tail = 0;
};

// The longest "end + tail" of one machine that always runs the arrived job
// with the longest tail and may interrupt it. `jobs` is sorted by head.
int64_t PreemptiveBound(std::vector<Job>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::pair(a.head, a.tail) < std::pair(b.head, b.tail);
  });
  std::priority_queue<std::pair<int64_t, int64_t>> arrived;  // Tail, left.
  int64_t now = 0;
  int64_t bound = 0;
  size_t next = 0;
  while (next < jobs.size() || !arrived.empty()) {
    if (arrived.empty()) now = std::max(now, jobs[next].head);
    while (next < jobs.size() && jobs[next].head <= now) {
      arrived.emplace(jobs[next].tail, jobs[next].duration);
      ++next;
    }
    auto [tail, left] = arrived.top();
    arrived.pop();
    const int64_t until =
        next < jobs.size() ? std::min(now + left, jobs[next].head) : now + left;
    left -= until - now;
    now = until;
    if (left > 0) {
      arrived.emplace(tail, left);
    } else {
      bound = std::max(bound, now + tail);
    }
  }
  return bound;
}

}  // namespace

int64_t LowerBound(const FlatGraph& g) {
  const auto n = static_cast<size_t>(g.num_tasks);
  std::vector<int64_t> head(n, 0);
  std::vector<int64_t> tail(n, 0);
  int64_t bound = 0;
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      const int32_t from = g.pred[e];
      head[t] =
          std::max(head[t], head[from] + g.duration[from] + g.pred_delay[e]);
    }
  }
  for (int32_t t = g.num_tasks - 1; t >= 0; --t) {
    tail[t] = g.epilogue[g.rank[t]];
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      const int32_t to = g.succ[e];
      tail[t] = std::max(tail[t], g.succ_delay[e] + g.duration[to] + tail[to]);
    }
    bound = std::max(bound, head[t] + g.duration[t] + tail[t]);
  }
  std::vector<std::vector<Job>> jobs(static_cast<size_t>(g.num_ranks));
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    jobs[g.rank[t]].push_back(
        {.head = head[t], .duration = g.duration[t], .tail = tail[t]});
  }
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    bound = std::max({bound, g.epilogue[r], PreemptiveBound(jobs[r])});
  }
  return bound;
}

Duration LowerBound(const StageGraph& graph) {
  return Nanoseconds(LowerBound(FlatGraph(graph)));
}

}  // namespace pipeloom::planner
