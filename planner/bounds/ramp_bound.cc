#include "planner/bounds/ramp_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

// Rounding allowed for in sums of doubles, in ns.
constexpr double kRounding = 0.01;
constexpr size_t kLongestRoute = 16;
constexpr size_t kLongestWalk = 64;
// The most jobs of a rank that are looked at; others count as far as heads
// allow.
constexpr size_t kMaxJobs = 64;

// The graph in one direction of time.
struct Direction {
  const FlatGraph* graph = nullptr;
  absl::Span<const int64_t> head{};
  bool backwards = false;

  absl::Span<const int32_t> Producers(int32_t t) const {
    const auto& offset = backwards ? graph->succ_offset : graph->pred_offset;
    return absl::MakeConstSpan(backwards ? graph->succ : graph->pred)
        .subspan(static_cast<size_t>(offset[t]),
                 static_cast<size_t>(offset[t + 1] - offset[t]));
  }
  absl::Span<const int64_t> Delays(int32_t t) const {
    const auto& offset = backwards ? graph->succ_offset : graph->pred_offset;
    return absl::MakeConstSpan(backwards ? graph->succ_delay
                                         : graph->pred_delay)
        .subspan(static_cast<size_t>(offset[t]),
                 static_cast<size_t>(offset[t + 1] - offset[t]));
  }
  // Returns the producer that t waits for, judged by heads; -1 if there is
  // none.
  int32_t Ahead(int32_t t) const {
    const auto producers = Producers(t);
    const auto delays = Delays(t);
    int32_t ahead = -1;
    int64_t latest = -1;
    for (size_t i = 0; i < producers.size(); ++i) {
      const int32_t p = producers[i];
      const int64_t end = head[p] + graph->duration[p] + delays[i];
      if (end <= latest) continue;
      latest = end;
      ahead = p;
    }
    return ahead;
  }
};

struct Job {
  int64_t head = 0;
  int64_t duration = 0;
  int64_t lead = 0;   // Work of its chain, ns.
  int64_t least = 0;  // Least work on any rank of the route, ns.
  bool free = false;  // Whether it is no job of the route.
  // The job of the same rank without which a free task cannot run; -1 if only
  // its head counts.
  int32_t needs = -1;
};

// The work of a job and of tasks that need it, by some moment.
struct Item {
  int64_t lead = 0;
  double work = 0;
  double weight = 0;  // Share of the room that jobs have in common.
};

// Bounds the work that a rank can do by a moment.
class Ramp {
 public:
  // `tasks` are those of one rank, sorted by head.
  Ramp(const Direction& direction, absl::Span<const int32_t> tasks)
      : jobs_(tasks.size()) {
    const FlatGraph& g = *direction.graph;
    // Takes the route of the first task that waits for others.
    std::vector<int32_t> route;
    for (const int32_t t : tasks) {
      route = Chain(direction, t, kLongestRoute);
      if (!route.empty()) break;
    }
    std::vector<int32_t> ranks;
    for (const int32_t t : route) ranks.push_back(g.rank[t]);
    std::vector<uint8_t> used(static_cast<size_t>(g.num_tasks), 0);
    std::vector<int32_t> index(static_cast<size_t>(g.num_tasks), -1);
    bool any = false;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const int32_t t = tasks[i];
      Job& job = jobs_[i];
      job = {.head = direction.head[t], .duration = g.duration[t]};
      job.least = job.duration;
      job.free = true;
      index[t] = static_cast<int32_t>(i);
      if (i >= kMaxJobs || ranks.empty()) continue;
      job.needs = JobAhead(direction, t, index);
      const std::vector<int32_t> chain = Chain(direction, t, ranks.size());
      if (chain.size() != ranks.size()) continue;
      bool is_job = true;
      for (size_t k = 0; k < chain.size(); ++k) {
        is_job &= g.rank[chain[k]] == ranks[k] && used[chain[k]] == 0;
      }
      if (!is_job) continue;
      for (const int32_t p : chain) {
        used[p] = 1;
        job.lead += g.duration[p];
        job.least = std::min(job.least, g.duration[p]);
      }
      const int64_t start = direction.head[chain.back()];
      job.free = false;
      job.needs = -1;
      begin_ = any ? std::min(begin_, start) : start;
      any = true;
    }
  }

  // Returns a lower bound of the idle time in the first x ns.
  double IdleBy(int64_t x) {
    double all = 0;
    double alone = 0;
    leads_.clear();
    items_.assign(jobs_.size(), {});
    for (size_t i = 0; i < jobs_.size() && jobs_[i].head < x; ++i) {
      const Job& job = jobs_[i];
      const auto work =
          static_cast<double>(std::min(job.duration, x - job.head));
      all += work;
      if (!job.free) {
        // A job that cannot end by then has the weight of the part that it has
        // done.
        items_[i].lead = job.lead;
        items_[i].work = work;
        items_[i].weight = std::min(work, static_cast<double>(job.least));
        leads_.push_back(job.lead);
      } else if (job.needs >= 0) {
        items_[job.needs].work += work;
      } else {
        alone += work;
      }
    }
    std::erase_if(items_, [](const Item& item) { return item.work <= 0; });
    std::stable_sort(items_.begin(), items_.end(),
                     [](const Item& a, const Item& b) {
                       return a.work * b.weight > b.work * a.weight;
                     });
    std::sort(leads_.begin(), leads_.end());
    leads_.erase(std::unique(leads_.begin(), leads_.end()), leads_.end());
    double most = alone;
    for (const int64_t lead : leads_) {
      auto room = static_cast<double>(x - begin_ - lead);
      if (room <= 0) break;
      double work = alone;
      for (const Item& item : items_) {
        if (item.lead > lead) continue;
        if (item.weight > room) {
          work += item.work * room / item.weight;
          break;
        }
        work += item.work;
        room -= item.weight;
      }
      most = std::max(most, work);
    }
    return std::max(0.0, static_cast<double>(x) - std::min(all, most));
  }

  // Returns the moments to look at: heads, the first half of them one by one.
  std::vector<int64_t> Moments(int64_t known, int32_t points) const {
    std::vector<int64_t> moments;
    for (const Job& job : jobs_) {
      if (job.head > 0 && job.head <= known) moments.push_back(job.head);
    }
    moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
    const auto most = static_cast<size_t>(points);
    if (moments.size() <= most) return moments;
    const size_t one_by_one = most / 2;
    for (size_t i = one_by_one; i < most; ++i) {
      moments[i] = moments[one_by_one + (i - one_by_one) *
                                            (moments.size() - one_by_one) /
                                            (most - one_by_one)];
    }
    moments.resize(most);
    return moments;
  }

 private:
  // Returns the tasks ahead of t, nearest first, as long as their ranks differ
  // from t's and from each other.
  static std::vector<int32_t> Chain(const Direction& direction, int32_t t,
                                    size_t length) {
    const std::vector<int32_t>& rank = direction.graph->rank;
    std::vector<int32_t> chain;
    for (int32_t p = direction.Ahead(t); p >= 0 && chain.size() < length;
         p = direction.Ahead(p)) {
      const bool again =
          rank[p] == rank[t] ||
          std::any_of(chain.begin(), chain.end(),
                      [&](int32_t c) { return rank[c] == rank[p]; });
      if (again) break;
      chain.push_back(p);
    }
    return chain;
  }
  // Returns the index of the job on the chain ahead of t that is on its rank;
  // -1 if there is none.
  int32_t JobAhead(const Direction& direction, int32_t t,
                   const std::vector<int32_t>& index) const {
    size_t steps = 0;
    for (int32_t p = direction.Ahead(t); p >= 0 && steps < kLongestWalk;
         p = direction.Ahead(p), ++steps) {
      if (index[p] < 0) continue;
      const Job& job = jobs_[index[p]];
      return job.free ? job.needs : index[p];
    }
    return -1;
  }

  std::vector<Job> jobs_;  // Sorted by head.
  std::vector<Item> items_{};
  std::vector<int64_t> leads_{};
  int64_t begin_ = 0;
};

struct Idle {
  int64_t at = 0;
  double time = 0;
};

std::vector<Idle> IdleOf(const Direction& direction, std::vector<int32_t> tasks,
                         int64_t known, int32_t points) {
  std::stable_sort(tasks.begin(), tasks.end(), [&](int32_t a, int32_t b) {
    return direction.head[a] < direction.head[b];
  });
  std::vector<Idle> idle = {{}};
  if (tasks.empty()) return idle;
  Ramp ramp(direction, tasks);
  for (const int64_t x : ramp.Moments(known, points)) {
    // Idle time never decreases.
    idle.push_back({x, std::max(idle.back().time, ramp.IdleBy(x))});
  }
  return idle;
}

}  // namespace

int64_t RampBound(const FlatGraph& g, absl::Span<const int64_t> head,
                  absl::Span<const int64_t> tail, int64_t known,
                  int32_t points) {
  std::vector<std::vector<int32_t>> tasks(static_cast<size_t>(g.num_ranks));
  for (int32_t t = 0; t < g.num_tasks; ++t) tasks[g.rank[t]].push_back(t);
  int64_t bound = 0;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    double load = 0;
    for (const int32_t t : tasks[r]) {
      load += static_cast<double>(g.duration[t]);
    }
    const std::vector<Idle> first =
        IdleOf({.graph = &g, .head = head}, tasks[r], known, points);
    const std::vector<Idle> last =
        IdleOf({.graph = &g, .head = tail, .backwards = true}, tasks[r], known,
               points);
    for (const Idle& idle : first) {
      size_t i = last.size();
      while (i > 0 && last[i - 1].at > known - idle.at) --i;
      if (i == 0) continue;
      const double time = load + idle.time + last[i - 1].time;
      bound =
          std::max(bound, static_cast<int64_t>(std::ceil(time - kRounding)));
    }
  }
  return bound;
}

}  // namespace pipeloom::planner
