// Greedy placement of tasks under memory limits: whenever a rank is free it
// takes the best task that has arrived and that memory admits.
//
// Ranks decide in order of time (ties by rank), so a decision never sees the
// future, except for `patience`. Memory deadlocks are impossible: see
// planner/core/memory_guard.h. The dual queue of DIP (arXiv 2504.14145, section
// 5) is Prefer::kAlternate. Cost: O(tasks log ranks + edges), tens of
// nanoseconds for each task.
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

// The pass that goes first if tasks of several passes have arrived.
enum class Prefer : uint8_t {
  kBackward,   // B, then F, then W: W fills idle gaps.
  kForward,    // F, then B, then W.
  kAlternate,  // B and F in turns, then W.
  kPriority,   // Whatever comes first in the order.
};

// How a list scheduler chooses among tasks.
struct ListPolicy {
  // All tasks in descending priority. Empty: by task id.
  absl::Span<const int32_t> order{};
  Prefer prefer = Prefer::kBackward;
  // A rank leaves a task waiting if a better one (of a more preferred pass, or
  // of the same pass and earlier in `order`) will arrive within `patience` x
  // the waiting task's duration.
  double patience = 0;
  // Indexed by rank: the most bytes to use above static memory, as a way to
  // hold forwards back; raised if one microbatch alone needs more, and never
  // above the rank's own limit. Empty: the ranks' own limits.
  absl::Span<const int64_t> capacity{};
  // The share of what started microbatches may still need of a rank's memory
  // that is kept free for them: see MemoryGuard::Reset.
  double reserve = 0;
  // Whether `order` is a sequence that keeps the limits, and tasks that take
  // memory keep its order on each rank whose limit can be reached; the others
  // run whenever they can. This follows schedules that the guard against
  // deadlocks would not admit, and needs no guard: the first unstarted task of
  // the sequence can always start. If the order does not keep the limits, the
  // run may end without an answer.
  bool keeps_takers = false;
  // Ends the run as soon as the step time is certain to be at least this (ns).
  int64_t give_up = kNoLimit;
};

// A list scheduler of one graph; keeps its workspace between runs. Use one per
// thread.
class ListScheduler {
 public:
  // Keeps a reference to `graph`.
  explicit ListScheduler(const FlatGraph& graph);

  // Returns whether every microbatch fits when it runs alone; only then may Run
  // be called.
  bool CanRun() const { return guard_.shortage().task < 0; }
  const MemoryShortage& shortage() const { return guard_.shortage(); }
  const MemoryGuard& guard() const { return guard_; }

  // Schedules all tasks. Returns the step time in ns, or kNoLimit if it gave up
  // or (ListPolicy::keeps_takers) found no way on. REQUIRES: CanRun(), unless
  // policy.keeps_takers.
  int64_t Run(const ListPolicy& policy);

  // Returns the tasks of the last Run in the order in which they were placed, a
  // topological sequence sorted by start time; and their starts in ns, indexed
  // by task.
  absl::Span<const int32_t> sequence() const { return sequence_; }
  absl::Span<const int64_t> start() const { return start_; }

 private:
  struct TaskInfo {
    int64_t duration = 0;
    // The longest chain behind it, to the end of the step; ns.
    int64_t tail = 0;
    int64_t alloc = 0;
    int32_t rank = 0;
    int32_t queue = 0;  // Index of the queue of its rank and pass.
    int32_t succ_begin = 0;
    int32_t succ_end = 0;
    Pass pass = Pass::kForward;
  };
  struct TaskState {
    int64_t arrival = 0;
    int32_t missing = 0;  // Producers not placed.
    int32_t slot = 0;     // Its place among the tasks of its queue, best first.
  };
  // The tasks of one rank and pass. Ready ones are bits over slots, so that
  // they are met best first.
  struct Queue {
    int32_t begin = 0;  // First of its tasks in task_of_slot_.
    int32_t size = 0;
    int32_t first_word = 0;  // First of its words in ready_.
    int32_t words = 0;
    int32_t low = 0;    // No bit is set below this word.
    int32_t ready = 0;  // Number of bits set.
    // Whether no task keeps more than it gives back, and the most bytes that
    // one takes: with that much room all are admitted.
    bool only_frees = true;
    int64_t most_alloc = 0;
    // The least bytes that a task takes, and that a task keeps.
    int64_t least_alloc = kNoLimit;
    int64_t least_net = kNoLimit;
  };
  struct Pending {
    int64_t arrival = 0;
    int32_t task = 0;
  };
  struct Rank {
    int64_t free_at = 0;
    // The rank's rank_work_ without the tasks that are placed.
    int64_t left = 0;
    // Tasks that are to arrive: a part of pending_ with room for all the rank's
    // tasks, and their number.
    int32_t pending_begin = 0;
    int32_t num_pending = 0;
    // For runs that keep takers: whether this rank's limit can be reached, the
    // bytes that it may still take, and the next of its takers_.
    bool keeps = false;
    int64_t room = 0;
    int32_t next_taker = 0;
    int32_t end_taker = 0;
    // The last forward or backward, for kAlternate.
    Pass last = Pass::kBackward;
  };

  void SetTails();
  void Prepare(const ListPolicy& policy);
  void PrepareTakers(const ListPolicy& policy);
  // Notes when the task arrives; makes it ready at once if the rank is busy
  // until then.
  void Arrive(Rank& rank, int64_t arrival, int32_t task);
  // Makes tasks that have arrived by `now` ready; returns when the next one
  // arrives.
  int64_t TakeArrived(Rank& rank, int64_t now);
  void MakeReady(int32_t task);
  // Returns the queue's best task. REQUIRES: queue.ready > 0.
  int32_t Best(Queue& queue) const;
  // Returns the best task that memory admits and that is not behind `rival`
  // (unless that is -1) in the policy's order; -1 if there is none. REQUIRES:
  // queue.ready > 0.
  int32_t BestAdmitted(Queue& queue, int32_t rank, int32_t rival);
  // The same for a run that keeps takers.
  int32_t BestKept(Queue& queue, int32_t rank);
  bool MayTake(int32_t task) const;
  void Remove(int32_t task);
  // Returns when a task that goes first arrives soon; kNever if none does.
  int64_t WorthWaitingFor(const Rank& rank, const ListPolicy& policy,
                          int64_t now, int32_t task, int preferred) const;
  // Removes the task to run from its queue and returns it; -1 if there is none.
  int32_t Pick(int32_t rank, const ListPolicy& policy, int64_t now,
               int64_t* wait_until);
  int32_t NextRank() const;
  void SetDecision(int32_t rank, int64_t at);

  const FlatGraph* graph_;
  MemoryGuard guard_;
  std::vector<TaskInfo> info_;
  std::vector<TaskState> state_;
  std::vector<TaskState> fresh_;  // State before a run, except for slots.
  std::vector<int32_t> sources_;  // Tasks without producers.
  std::vector<Queue> queues_;     // Indexed by rank and pass.
  std::vector<int32_t> task_of_slot_;
  std::vector<uint64_t> ready_;
  // Indexed by task: its place in the policy's order; set only if needed.
  std::vector<int32_t> place_;
  std::vector<Rank> ranks_;
  // Indexed by rank: the time of its tasks, plus the shortest chain behind any
  // of them; ns.
  std::vector<int64_t> rank_work_;
  std::vector<Pending> pending_;
  // When each rank decides next, as a tournament: leaf i + leaves_ is rank i,
  // and each inner node is the smaller of its children (ties: the left one).
  // With few ranks only the leaves are kept.
  std::vector<int64_t> decide_at_;
  int32_t leaves_ = 8;
  // Groups refused in the present look at a queue: its stamp, and the least
  // bytes refused.
  std::vector<int64_t> refused_stamp_;
  std::vector<int64_t> refused_bytes_;
  bool keeps_takers_ = false;
  // Tasks that take memory, rank by rank in the policy's order.
  std::vector<int32_t> takers_{};
  // Indexed by rank: the bytes that all its tasks take, and their number.
  std::vector<int64_t> taken_bytes_{};
  std::vector<int32_t> num_takers_{};
  int64_t stamp_ = 0;
  std::vector<int32_t> sequence_;
  std::vector<int64_t> start_;
};

// Makes one run from graph to schedule. ResourceExhausted names the rank, the
// task and the bytes that are missing.
absl::StatusOr<Schedule> ListSchedule(const StageGraph& graph,
                                      const ListPolicy& policy = {});

// Returns that error.
absl::Status DescribeShortage(const StageGraph& graph,
                              const MemoryShortage& shortage);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CONSTRUCT_LIST_SCHEDULER_H_
