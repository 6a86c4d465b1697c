// Greedy placement of tasks under memory limits: whenever a rank is free it
// takes the best task that has arrived and that memory admits.
//
// Ranks decide in order of time (ties by rank), so a decision never sees the
// future, except for `patience`. Memory deadlocks are impossible: see
// planner/memory_guard.h. The dual queue of DIP (arXiv 2504.14145, section 5)
// is Prefer::kAlternate. Cost O(tasks (log tasks + ranks) + edges), tens of
// nanoseconds a task.
#ifndef PIPELOOM_PLANNER_LIST_SCHEDULER_H_
#define PIPELOOM_PLANNER_LIST_SCHEDULER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/schedule.h"
#include "ir/stage_graph.h"
#include "planner/flat_graph.h"
#include "planner/memory_guard.h"

namespace pipeloom::planner {

// Which pass goes first when tasks of several passes have arrived.
enum class Prefer : uint8_t {
  kBackward,   // B, then F, then W: W fills idle gaps.
  kForward,    // F, then B, then W.
  kAlternate,  // B and F in turns, then W.
  kPriority,   // Whatever has the smallest priority number.
};

struct ListPolicy {
  // By task; the smallest goes first, ties by task id. Empty: by task id.
  // REQUIRES: below 2^62 / tasks.
  absl::Span<const int64_t> priority{};
  Prefer prefer = Prefer::kBackward;
  // A rank leaves a task waiting for a better one (of a more preferred pass, or
  // of the same and of smaller priority) that will arrive within `patience` x
  // the former's duration.
  double patience = 0;
  // By rank: use at most so many bytes above static memory, as a way to hold
  // forwards back; raised where one microbatch alone needs more. Never above
  // the rank's own limit. Empty: the rank's own limit.
  absl::Span<const int64_t> capacity{};
};

// Keeps the workspace between runs. One per thread.
class ListScheduler {
 public:
  // Keeps a reference to `graph`.
  explicit ListScheduler(const FlatGraph& graph);

  // Whether every microbatch fits when it runs alone; only then may Run be
  // called.
  bool CanRun() const { return guard_.shortage().task < 0; }
  const MemoryShortage& shortage() const { return guard_.shortage(); }
  const MemoryGuard& guard() const { return guard_; }

  // Schedules all tasks; returns the step time in ns. REQUIRES: CanRun().
  int64_t Run(const ListPolicy& policy);

  // Of the last Run: all tasks in the order in which they were placed, which
  // is a topological sequence sorted by start time; and their starts.
  absl::Span<const int32_t> sequence() const { return sequence_; }
  absl::Span<const int64_t> start() const { return start_; }

 private:
  struct Entry {
    int64_t key = 0;  // Priority, then task id.
    int32_t task = 0;
  };
  // A binary heap with removal from the middle.
  class Heap {
   public:
    bool empty() const { return entries_.empty(); }
    const std::vector<Entry>& entries() const { return entries_; }
    void clear() { entries_.clear(); }
    void Push(Entry entry);
    void RemoveAt(size_t index);

   private:
    void SiftUp(size_t index);
    void SiftDown(size_t index);
    std::vector<Entry> entries_{};
  };
  struct Pending {
    int64_t arrival = 0;
    int32_t task = 0;
  };
  struct Rank {
    Heap ready[3]{};  // By pass.
    std::vector<Pending> pending{};
    int64_t free_at = 0;
    Pass last = Pass::kBackward;  // Of forward and backward, for kAlternate.
  };
  int64_t KeyOf(const ListPolicy& policy, int32_t task) const;
  // Index in the heap of the best task that memory admits; -1: none.
  int64_t BestAdmitted(const Heap& heap) const;
  // The task to run, removed from its heap; -1: none.
  int32_t Pick(Rank& rank, const ListPolicy& policy, int64_t now,
               int64_t* wait_until);

  const FlatGraph* graph_;
  MemoryGuard guard_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> decide_at_;  // By rank.
  std::vector<int32_t> missing_;    // By task: producers not placed.
  std::vector<int64_t> arrival_;    // By task.
  std::vector<int32_t> sequence_;
  std::vector<int64_t> start_;
};

// One run from graph to schedule. ResourceExhausted names the rank, the task
// and the bytes that lack, and the smallest limit for which a schedule was
// found.
absl::StatusOr<Schedule> ListSchedule(const StageGraph& graph,
                                      const ListPolicy& policy = {});

// That error.
absl::Status DescribeShortage(const StageGraph& graph,
                              const MemoryShortage& shortage);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LIST_SCHEDULER_H_
