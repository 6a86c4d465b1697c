// Solves windows of the best answer exactly: some tasks that follow each other
// in it are ordered anew by branch and bound, while all before and after stay.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_SOLVE_WINDOWS_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_SOLVE_WINDOWS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/moves/move.h"

namespace pipeloom::planner {

// Branch and bound over the orders of the tasks of one window, each as early as
// the order lets it. In each node it branches over the tasks of one rank that
// may start before any other task can end, after Giffler and Thompson; as a
// task without room in memory is no candidate, orders that idle for room may be
// missed.
class WindowSolver {
 public:
  // Tasks of a window; more are never given.
  static constexpr int32_t kMostTasks = 24;

  // Keeps a reference to `graph`.
  explicit WindowSolver(const FlatGraph& graph);

  // Orders the tasks at [begin, begin + size) of `sequence` anew. `end` and
  // `tail` are indexed by task: the ends in the sequence, and the time from a
  // task's start to the end of the step. Returns whether the longest path
  // through the window has become shorter; order() is then the window's best
  // order. Enters at most `most` nodes. REQUIRES: `sequence` is topological and
  // keeps the limits; 0 <= size <= kMostTasks.
  bool Solve(absl::Span<const int32_t> sequence, size_t begin, int32_t size,
             absl::Span<const int64_t> end, absl::Span<const int64_t> tail,
             int64_t most);

  const std::vector<int32_t>& order() const { return order_; }
  int64_t nodes() const { return nodes_; }
  // Returns whether the last window was solved within its nodes.
  bool proven() const { return nodes_ < most_; }

 private:
  struct Job {
    int32_t task = 0;
    int32_t rank = 0;  // Index into ranks_.
    int64_t duration = 0;
    int64_t head = 0;     // Earliest start by tasks before the window.
    int64_t rest = 0;     // From its end to the end of the step.
    int32_t missing = 0;  // Producers in the window that are not done.
    bool done = false;
  };
  struct Edge {
    int32_t from = 0;  // Indices into jobs_.
    int32_t to = 0;
    int64_t delay = 0;
  };
  struct Rank {
    int64_t free_at = 0;
    int64_t held = 0;
  };
  void Enter(int32_t depth, int64_t longest);
  // Returns whether the rank has room for the job now.
  bool HasRoom(const Job& job) const;

  const FlatGraph* graph_;
  std::vector<int32_t> job_of_task_;   // Index into jobs_, or -1.
  std::vector<int32_t> rank_of_rank_;  // Index into ranks_, or -1.
  std::vector<Job> jobs_{};
  std::vector<std::vector<Edge>> out_{};  // Indexed by job.
  std::vector<Rank> ranks_{};
  std::vector<int64_t> capacity_{};  // Indexed by rank of the window.
  std::vector<int64_t> held_{};      // Indexed by rank of the graph.
  std::vector<int32_t> path_{};
  std::vector<int32_t> order_{};
  int64_t best_ = 0;
  int64_t nodes_ = 0;
  int64_t most_ = 0;
};

// Takes window after window of the best answer, each beginning in the middle of
// the one before, until none can be improved.
class SolveWindows : public Move {
 public:
  explicit SolveWindows(SearchState& state)
      : Move(state), solver_(state.graph()) {}
  void Run(const SearchBudget& budget) override;

 private:
  // Takes the best answer, in the order of starts.
  void Prepare();
  // Times the sequence and makes ends and tails of all tasks.
  void Refresh();

  WindowSolver solver_;
  int64_t time_ = -1;  // The answer that is being worked on.
  std::vector<int32_t> sequence_{};
  std::vector<int64_t> end_{};
  std::vector<int64_t> tail_{};
  size_t next_ = 0;     // Where the next window begins.
  size_t useless_ = 0;  // Tasks since the last gain.
  size_t size_ = 0;     // Index of the size of windows.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_SOLVE_WINDOWS_H_
