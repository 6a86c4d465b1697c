// Greedy placement of tasks under memory limits: whenever a rank is free it
// takes the best task that has arrived and that memory admits.
//
// Ranks decide in order of time (ties by rank), so a decision never sees the
// future, except for `patience`. Memory deadlocks are impossible: see
// planner/core/memory_guard.h. The dual queue of DIP (arXiv 2504.14145, section
// 5) is Prefer::kAlternate. Cost O(tasks log ranks + edges), tens of
// nanoseconds a task.
#ifndef PIPELOOM_PLANNER_CONSTRUCT_LIST_SCHEDULER_H_
#define PIPELOOM_PLANNER_CONSTRUCT_LIST_SCHEDULER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_guard.h"

namespace pipeloom::planner {

// Which pass goes first when tasks of several passes have arrived.
enum class Prefer : uint8_t {
  kBackward,   // B, then F, then W: W fills idle gaps.
  kForward,    // F, then B, then W.
  kAlternate,  // B and F in turns, then W.
  kPriority,   // Whatever comes first in the order.
};

struct ListPolicy {
  // All tasks, the one that goes first ahead. Empty: by task id.
  absl::Span<const int32_t> order{};
  Prefer prefer = Prefer::kBackward;
  // A rank leaves a task waiting for a better one (of a more preferred pass, or
  // of the same and earlier in `order`) that will arrive within `patience` x
  // the former's duration.
  double patience = 0;
  // By rank: use at most so many bytes above static memory, as a way to hold
  // forwards back; raised where one microbatch alone needs more. Never above
  // the rank's own limit. Empty: the rank's own limit.
  absl::Span<const int64_t> capacity{};
  // Ends the run as soon as the step time is sure to be this or more.
  int64_t give_up = kNoLimit;
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

  // Schedules all tasks; returns the step time in ns, or kNoLimit when it gave
  // up. REQUIRES: CanRun().
  int64_t Run(const ListPolicy& policy);

  // Of the last Run: all tasks in the order in which they were placed, which
  // is a topological sequence sorted by start time; and their starts.
  absl::Span<const int32_t> sequence() const { return sequence_; }
  absl::Span<const int64_t> start() const { return start_; }

 private:
  struct TaskInfo {
    int64_t duration = 0;
    int64_t tail = 0;  // The longest chain behind it, to the end of the step.
    int64_t alloc = 0;
    int32_t rank = 0;
    int32_t queue = 0;  // Of its rank and pass.
    int32_t succ_begin = 0;
    int32_t succ_end = 0;
    Pass pass = Pass::kForward;
  };
  struct TaskState {
    int64_t arrival = 0;
    int32_t missing = 0;  // Producers not placed.
    int32_t slot = 0;     // Among the tasks of its queue, best first.
  };
  // The tasks of one rank and pass: those that are ready as bits over slots,
  // so that they are met best first.
  struct Queue {
    int32_t begin = 0;  // Of its tasks in task_of_slot_.
    int32_t size = 0;
    int32_t first_word = 0;  // In ready_.
    int32_t words = 0;
    int32_t low = 0;    // No bit below this word.
    int32_t ready = 0;  // Bits set.
    // Whether no task keeps more than it gives back, and the most that one
    // takes: with room for that much all are admitted.
    bool only_frees = true;
    int64_t most_alloc = 0;
    // The least that one takes, and that one keeps.
    int64_t least_alloc = kNoLimit;
    int64_t least_net = kNoLimit;
  };
  struct Pending {
    int64_t arrival = 0;
    int32_t task = 0;
  };
  struct Rank {
    int64_t free_at = 0;
    int64_t left = 0;  // Of rank_work_, without what is placed.
    // Of tasks that are to arrive: a part of pending_ with room for all the
    // rank's tasks, and how many there are.
    int32_t pending_begin = 0;
    int32_t num_pending = 0;
    Pass last = Pass::kBackward;  // Of forward and backward, for kAlternate.
  };

  void SetTails();
  void Prepare(const ListPolicy& policy);
  // The task will have arrived, ready at once when the rank is busy till then.
  void Arrive(Rank& rank, int64_t arrival, int32_t task);
  // Tasks that have arrived by `now` become ready; when the next one arrives.
  int64_t TakeArrived(Rank& rank, int64_t now);
  void MakeReady(int32_t task);
  // The queue's best task. REQUIRES: queue.ready > 0.
  int32_t Best(Queue& queue) const;
  // The best that memory admits and that is not behind `rival` (unless that is
  // -1) in the policy's order; -1: none. REQUIRES: queue.ready > 0.
  int32_t BestAdmitted(Queue& queue, int32_t rank, int32_t rival);
  void Remove(int32_t task);
  // Whether something that goes first arrives soon; if so, when.
  int64_t WorthWaitingFor(const Rank& rank, const ListPolicy& policy,
                          int64_t now, int32_t task, int preferred) const;
  // The task to run, removed from its queue; -1: none.
  int32_t Pick(int32_t rank, const ListPolicy& policy, int64_t now,
               int64_t* wait_until);
  int32_t NextRank() const;
  void SetDecision(int32_t rank, int64_t at);

  const FlatGraph* graph_;
  MemoryGuard guard_;
  std::vector<TaskInfo> info_;
  std::vector<TaskState> state_;
  std::vector<TaskState> fresh_;  // State before a run, but for slots.
  std::vector<int32_t> sources_;  // Tasks without producers.
  std::vector<Queue> queues_;     // By rank and pass.
  std::vector<int32_t> task_of_slot_;
  std::vector<uint64_t> ready_;
  // By task: in the policy's order; where passes or patience ask for it.
  std::vector<int32_t> place_;
  std::vector<Rank> ranks_;
  // By rank: its tasks, then the shortest chain behind any of them.
  std::vector<int64_t> rank_work_;
  std::vector<Pending> pending_;
  // When each rank decides next, as a tournament: leaf i + leaves_ is rank i,
  // each inner node the smaller of its children (ties: the left one). Of few
  // ranks only the leaves are kept.
  std::vector<int64_t> decide_at_;
  int32_t leaves_ = 8;
  // Groups refused in this look at a queue: stamp, and the least bytes refused.
  std::vector<int64_t> refused_stamp_;
  std::vector<int64_t> refused_bytes_;
  int64_t stamp_ = 0;
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

#endif  // PIPELOOM_PLANNER_CONSTRUCT_LIST_SCHEDULER_H_
