#include "planner/bounds/lower_bound.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "planner/bounds/area_bound.h"
#include "planner/bounds/memory_bound.h"
#include "planner/bounds/overtaking_bound.h"
#include "planner/bounds/ramp_bound.h"
#include "planner/bounds/window_bound.h"

namespace pipeloom::planner {
namespace {

struct Job {
  int64_t head = 0;
  int64_t duration = 0;
  int64_t tail = 0;
};

// Returns the longest "end + tail" on one machine that always runs the arrived
// job with the longest tail and may interrupt it. Sorts `jobs` by head.
int64_t PreemptiveBound(std::vector<Job>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::pair(a.head, a.tail) < std::pair(b.head, b.tail);
  });
  // Pairs of tail and time left.
  std::priority_queue<std::pair<int64_t, int64_t>> arrived;
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

// Number of moments looked at in a cheap bound and in a strong one.
constexpr int32_t kFewMoments = 12;
constexpr int32_t kManyMoments = 1000;

void Raise(NamedBound* bound, int64_t time, const char* source) {
  if (time > bound->time) *bound = {.time = time, .source = source};
}

// Returns the most bytes that each rank can hold: what it holds is always a
// multiple of the common divisor of all that its tasks take and give back.
std::vector<int64_t> UsableCapacity(const FlatGraph& g) {
  std::vector<int64_t> divisor(static_cast<size_t>(g.num_ranks), 0);
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    int64_t& of_rank = divisor[g.rank[t]];
    of_rank = std::gcd(of_rank, std::gcd(g.alloc[t], g.free[t]));
  }
  std::vector<int64_t> capacity = g.capacity;
  for (size_t r = 0; r < capacity.size(); ++r) {
    if (capacity[r] <= 0 || capacity[r] >= kNoLimit || divisor[r] <= 1) {
      continue;
    }
    capacity[r] -= capacity[r] % divisor[r];
  }
  return capacity;
}

// Computes the bounds; with no moments only chains and loads.
NamedBound BoundOf(const FlatGraph& g, const HeadsAndTails& chains,
                   int32_t moments) {
  NamedBound bound;
  std::vector<std::vector<Job>> jobs(static_cast<size_t>(g.num_ranks));
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    const Job job = {.head = chains.head[t],
                     .duration = g.duration[t],
                     .tail = chains.tail[t]};
    Raise(&bound, job.head + job.duration + job.tail, "chain");
    jobs[g.rank[t]].push_back(job);
  }
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    Raise(&bound, g.epilogue[r], "chain");
    Raise(&bound, PreemptiveBound(jobs[r]), "rank load");
  }
  if (moments == 0) return bound;
  Raise(&bound, OvertakingBound(g, chains.head, chains.tail), "overtaking");
  Raise(&bound, RampBound(g, chains.head, chains.tail, bound.time, moments),
        "ramp");
  const auto with_memory = [&](const FlatGraph& graph) {
    Raise(&bound,
          MemoryBound(graph, chains.head, chains.tail, bound.time, moments),
          "memory");
    Raise(&bound, AreaBound(graph, chains.head, chains.tail, bound.time),
          "area");
  };
  std::vector<int64_t> capacity = UsableCapacity(g);
  if (capacity == g.capacity) {
    with_memory(g);
  } else {
    FlatGraph usable = g;
    usable.capacity = std::move(capacity);
    with_memory(usable);
  }
  return bound;
}

}  // namespace

namespace {

// Rounds a bound up. All times of a schedule whose tasks start as early as they
// can are sums of the graph's times, so the shortest step is a multiple of
// their common divisor.
int64_t RoundUp(const FlatGraph& g, int64_t time) {
  int64_t divisor = 0;
  for (const auto* times : {&g.duration, &g.pred_delay, &g.epilogue}) {
    for (const int64_t value : *times) divisor = std::gcd(divisor, value);
  }
  return divisor > 1 ? (time + divisor - 1) / divisor * divisor : time;
}

NamedBound RoundUp(const FlatGraph& g, NamedBound bound) {
  bound.time = RoundUp(g, bound.time);
  return bound;
}

}  // namespace

HeadsAndTails ChainsOf(const FlatGraph& g) {
  const auto n = static_cast<size_t>(g.num_tasks);
  std::vector<int64_t> head(n, 0);
  std::vector<int64_t> tail(n, 0);
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
  }
  return {std::move(head), std::move(tail)};
}

NamedBound CheapLowerBound(const FlatGraph& g) {
  return RoundUp(g, BoundOf(g, ChainsOf(g), kFewMoments));
}

NamedBound StrongLowerBound(const FlatGraph& g, const SearchBudget& budget) {
  const HeadsAndTails chains = ChainsOf(g);
  NamedBound bound = BoundOf(g, chains, kManyMoments);
  Raise(&bound, WindowBound(g, chains.head, chains.tail, bound.time, budget),
        "time windows");
  return RoundUp(g, bound);
}

NamedBound LowerBoundWithoutMemory(const FlatGraph& g) {
  return BoundOf(g, ChainsOf(g), /*moments=*/0);
}

int64_t LowerBound(const FlatGraph& g) {
  return LowerBoundWithoutMemory(g).time;
}

Duration LowerBound(const StageGraph& graph) {
  return Nanoseconds(LowerBound(FlatGraph(graph)));
}

}  // namespace pipeloom::planner
