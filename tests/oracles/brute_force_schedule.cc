#include "tests/oracles/brute_force_schedule.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace pipeloom::testing {
namespace {

// Some optimal schedule starts every task as early as its rank's order and its
// producers allow. All such schedules are built by adding tasks in order of
// start time; a branch ends when its longest chain cannot beat the best.
class Enumeration {
 public:
  explicit Enumeration(const StageGraph& graph)
      : graph_(graph),
        end_(graph.num_tasks()),
        chain_(graph.num_tasks()),
        free_at_(graph.num_ranks(), kStepStart),
        held_(graph.num_ranks()) {
    for (int32_t i = graph.num_tasks(); i-- > 0;) {
      const TaskId t(i);
      chain_[t] = graph.rank(graph.task(t).rank).epilogue;
      for (const EdgeId e : graph.outgoing(t)) {
        const Dependency& d = graph.edge(e);
        chain_[t] = std::max(chain_[t], d.delay + chain_[d.to]);
      }
      chain_[t] += graph.task(t).duration;
    }
    for (const RankId r : graph.rank_ids()) {
      held_[r] = graph.rank(r).memory.static_bytes();
    }
  }

  std::optional<Duration> Optimum() {
    for (const RankId r : graph_.rank_ids()) {
      if (Over(r, held_[r])) return std::nullopt;
    }
    Extend(0, kStepStart);
    return best_;
  }

 private:
  bool Over(RankId rank, Bytes held) const {
    const Bytes limit = graph_.rank(rank).memory.limit;
    return limit > Bytes(0) && held > limit;
  }
  bool Done(uint32_t done, TaskId t) const {
    return ((done >> t.value()) & 1u) != 0;
  }

  void Extend(uint32_t done, SimTime last_start) {
    if (done == (uint32_t{1} << graph_.num_tasks()) - 1) {
      Duration step{};
      for (const RankId r : graph_.rank_ids()) {
        step =
            std::max(step, free_at_[r] - kStepStart + graph_.rank(r).epilogue);
      }
      if (!best_.has_value() || step < *best_) best_ = step;
      return;
    }
    for (const TaskId t : graph_.task_ids()) {
      if (Done(done, t)) continue;
      const Task& task = graph_.task(t);
      SimTime start = free_at_[task.rank];
      bool ready = true;
      for (const EdgeId e : graph_.incoming(t)) {
        const Dependency& d = graph_.edge(e);
        ready = ready && Done(done, d.from);
        if (ready) start = std::max(start, end_[d.from] + d.delay);
      }
      if (!ready || start < last_start) continue;
      if (best_.has_value() && start - kStepStart + chain_[t] >= *best_) {
        continue;
      }
      const Bytes held = held_[task.rank];
      if (Over(task.rank, held + task.alloc)) continue;
      const SimTime was_free = free_at_[task.rank];
      held_[task.rank] = held + task.alloc - task.free;
      end_[t] = start + task.duration;
      free_at_[task.rank] = end_[t];
      Extend(done | (uint32_t{1} << t.value()), start);
      free_at_[task.rank] = was_free;
      held_[task.rank] = held;
    }
  }

  const StageGraph& graph_;
  IdVector<TaskId, SimTime> end_;
  IdVector<TaskId, Duration> chain_;  // Longest from its start to the end.
  IdVector<RankId, SimTime> free_at_;
  IdVector<RankId, Bytes> held_;
  std::optional<Duration> best_{};
};

}  // namespace

std::optional<Duration> BruteForceStepTime(const StageGraph& graph) {
  PIPELOOM_CHECK(graph.num_tasks() <= 31);
  return Enumeration(graph).Optimum();
}

}  // namespace pipeloom::testing
