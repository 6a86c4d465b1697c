// Schedules windows of the best answer anew: some tasks that follow each other
// in it are list-scheduled with other priorities, while all before and after
// stay in order. A better window makes the step shorter, whatever the others
// are like; a new schedule of the whole step must be better in all of them at
// once, which on large steps hardly ever happens.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_RELIST_WINDOWS_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_RELIST_WINDOWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/moves/move.h"

namespace pipeloom::planner {

// A sequence of all tasks with what its windows need. A window is a range of
// places of the sequence. Not thread-safe.
class WindowLister {
 public:
  // Keeps a reference to `graph`.
  explicit WindowLister(const FlatGraph& graph);

  // Takes a sequence. REQUIRES: it is topological and keeps the limits.
  void Start(absl::Span<const int32_t> sequence);
  int64_t time() const { return time_; }  // The step time of the sequence, ns.
  const std::vector<int32_t>& sequence() const { return sequence_; }

  // Chooses the window of `size` tasks from place `begin` on. Returns whether
  // all longest paths go through it, so that the step can become shorter.
  // REQUIRES: begin + size <= number of tasks.
  bool Choose(size_t begin, size_t size);

  // How a window is scheduled.
  struct Style {
    bool backwards = false;  // From its end to its begin.
    // Whether the tasks that leave most behind them go first, or else those
    // that are first in the sequence.
    bool by_tail = false;
    double noise = 0;  // On priorities: up to this many ns, either way.
    // How much of a task's time a rank waits at most for a task that should go
    // ahead of it.
    double patience = 0;
    // Whether tasks that take memory keep their order on their rank.
    bool keeps_takers = false;
  };
  // Schedules the window. Returns the longest path through it in ns, or
  // kNoLimit if that is not less than `give_up`, or if memory stops it.
  int64_t Try(const Style& style, int64_t give_up, Random& random);
  // Takes over the window of the last Try that returned a time.
  void Accept();
  // Returns whether that window is as it is in the sequence.
  bool IsSame() const {
    return std::equal(order_.begin(), order_.end(),
                      sequence_.begin() + static_cast<int64_t>(begin_));
  }

 private:
  struct Job {
    int32_t task = 0;
    int32_t rank = 0;  // Index into ranks_.
    int64_t duration = 0;
    // Indexed by direction: the earliest begin, and the time behind its end, by
    // tasks that are not in the window; then the time from its begin on.
    int64_t head[2] = {0, 0};
    int64_t tail[2] = {0, 0};
    int64_t first = 0;  // Its start in the sequence.
  };
  struct Edge {
    int32_t to = 0;  // Index into jobs_.
    int64_t delay = 0;
  };
  struct Rank {
    int64_t free_at[2] = {0, 0};
    int64_t held[2] = {0, 0};
    int64_t capacity = 0;
  };
  // A job and a rank while a window is being scheduled.
  struct Open {
    int64_t head = 0;
    double key = 0;  // Least first.
    int32_t missing = 0;
    int32_t turn = -1;  // Its turn among its rank's takers.
  };
  struct OpenRank {
    int64_t free_at = 0;
    int64_t held = 0;
    int32_t next_turn = 0;
    // The soonest start of one of `ready` that has room; kNoLimit: none.
    int64_t soonest = kNoLimit;
  };

  void Refresh();
  bool HasRoom(int32_t job, const OpenRank& rank, int side) const;
  void SetSoonest(int32_t rank, int side);

  const FlatGraph* graph_;
  std::vector<int32_t> sequence_{};
  int64_t time_ = 0;
  // Indexed by task: its end; the time from its start to the step's end; the
  // bytes that its rank holds before it; the rank's tasks before and after it.
  std::vector<int64_t> end_{};
  std::vector<int64_t> tail_{};
  std::vector<int64_t> held_{};
  std::vector<int32_t> previous_{};
  std::vector<int32_t> next_{};

  size_t begin_ = 0;
  std::vector<int32_t> job_of_task_;   // Index into jobs_, or -1.
  std::vector<int32_t> rank_of_rank_;  // Index into ranks_, or -1.
  std::vector<Job> jobs_{};
  std::vector<Rank> ranks_{};
  // Edges of the window in each direction, compressed rows.
  std::vector<Edge> edges_[2];
  std::vector<int32_t> edge_offset_[2];
  std::vector<Open> open_{};
  std::vector<OpenRank> open_ranks_{};
  std::vector<std::vector<int32_t>> ready_{};  // Indexed by rank of the window.
  std::vector<int32_t> order_{};               // Tasks.
};

// Schedules windows drawn at random. Immutable.
struct RandomWindows {
  double mean_duration = 0;  // The mean duration of a task, ns.
  bool is_limited = false;   // Whether memory is short.

  // Draws a window of the lister's sequence and schedules it in a few styles,
  // as long as `may_go_on` returns true. The lister takes the first order that
  // is another one and not longer; returns whether there was one. Calls
  // `spend(evaluations, cost)` for all work; the cost of one timing of the
  // whole sequence is 1.
  bool Relist(const std::function<bool()>& may_go_on,
              const std::function<void(int64_t, int64_t)>& spend,
              WindowLister* lister, Random& random) const;
};

// Takes windows of the best answer at random.
class RelistWindows : public Move {
 public:
  explicit RelistWindows(SearchState& state)
      : Move(state), lister_(state.graph()) {}
  void Run(const SearchBudget& budget) override;
  void OnRestart() override { begun_ = false; }

 private:
  WindowLister lister_;
  bool begun_ = false;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_RELIST_WINDOWS_H_
