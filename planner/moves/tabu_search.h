// Tabu search on the order of tasks, as in job-shop scheduling. Only tasks on a
// critical path are moved, each within its block: a run of tasks of one rank
// without a pause. Every possible move of an iteration is judged by an estimate
// from the heads and tails of the tasks involved. The best move that is not
// tabu is made, and heads and tails are swept again.
//
// Sources: Nowicki, Smutnicki 1996 (tabu search on blocks); Balas, Vazacopoulos
// 1998 (moves and estimates); Zhang et al. 2007 (tenure). Extended by memory
// limits, transfer times, epilogues, and several producers and consumers of a
// task.
//
// An iteration costs O(tasks) for the sweeps, some 4 ns for each task between
// the moved one and the ends, and O(moves * length) for the estimates.
#ifndef PIPELOOM_PLANNER_MOVES_TABU_SEARCH_H_
#define PIPELOOM_PLANNER_MOVES_TABU_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Searches orders of tasks. Use one per thread.
class TabuSearch {
 public:
  // Keeps a reference to `graph`.
  explicit TabuSearch(const FlatGraph& graph);

  // Begins at a sequence. REQUIRES: it is topological and within memory limits.
  void Start(absl::Span<const int32_t> sequence);
  // Makes up to `iterations` moves and returns how many. Stops early at
  // `target` ns, or if nothing can be moved.
  int64_t Run(int64_t iterations, int64_t target, Random& random);

  int64_t current_time() const { return current_; }
  int64_t best_time() const { return best_; }
  absl::Span<const int32_t> sequence() const { return sequence_; }
  absl::Span<const int32_t> best_sequence() const { return best_sequence_; }
  // Iterations since Start.
  int64_t iterations() const {
    return static_cast<int64_t>(iteration_ - started_);
  }
  // Iterations since the best was found.
  int64_t stalled() const { return stalled_; }

 private:
  // The values of a task that estimates and sweeps read, in one cache line. The
  // nodes of tasks are followed by one node for "none ahead" and, for each
  // rank, one for "none behind". Times are in ns.
  struct Node {
    int64_t end = 0;       // End of the task.
    int64_t left = 0;      // From its start to the end of the step.
    int64_t job_head = 0;  // The earliest start that producers allow.
    int64_t job_tail = 0;  // From its end on, considering consumers only.
    int64_t duration = 0;
    int64_t held = 0;  // Bytes held on its rank before it starts.
    int32_t previous = 0;
    int32_t next = 0;
    int32_t position = 0;
    int32_t rank = 0;
  };
  static_assert(sizeof(Node) == 64);
  // A task's first two neighbours in the graph; none_ahead() if there are
  // fewer.
  struct Neighbours {
    int32_t first = 0;
    int32_t second = 0;
    int32_t first_delay = 0;
    int32_t second_delay = 0;
    int32_t more = 0;  // Nonzero if there are others.
  };
  // Puts the task right after (or, if not `forward`, right before) another.
  struct Move {
    int32_t task = -1;
    int32_t target = -1;
    bool forward = false;
    int64_t estimate = 0;
  };

  int32_t none_ahead() const { return graph_->num_tasks; }
  int32_t none_behind(int32_t rank) const {
    return graph_->num_tasks + 1 + rank;
  }
  bool IsTask(int32_t node) const { return node < graph_->num_tasks; }
  static Neighbours FirstTwo(absl::Span<const int32_t> tasks,
                             absl::Span<const int64_t> delays, int32_t none);
  void SetHead(int32_t task);
  void SetTail(int32_t task);
  void SweepHeads(size_t from);
  void SweepTails(size_t until);
  void SweepAll();
  void CountTime();
  void FindPath(Random& random);
  void ConsiderBlock(size_t begin, size_t end, Random& random);
  void Consider(int32_t task, int32_t target, bool forward, Random& random);
  bool KeepsOrder(int32_t task, int32_t target, bool forward) const;
  bool FitsMemory(int32_t task, int32_t target, bool forward) const;
  int64_t Estimate(int32_t task, int32_t target, bool forward);
  bool IsTabu(int32_t task, int32_t target, bool forward) const;
  bool Apply(const Move& move, Random& random);
  static size_t Slot(int32_t first, int32_t second);

  const FlatGraph* graph_;
  std::vector<Node> nodes_;
  std::vector<Neighbours> producers_;
  std::vector<Neighbours> consumers_;
  std::vector<int32_t> sequence_;
  std::vector<int32_t> last_;  // Indexed by rank.
  // Indexed by a hash of (first, second): the iteration until which `first` may
  // not come ahead of `second` again. A collision only forbids one move too
  // many.
  std::vector<uint64_t> tabu_until_;
  uint64_t iteration_ = 0;
  uint64_t started_ = 0;  // The iteration of Start.
  int64_t tenure_ = 10;
  int64_t current_ = 0;
  int64_t best_ = 0;
  int64_t stalled_ = 0;
  std::vector<int32_t> best_sequence_;
  std::vector<int32_t> path_;
  Move best_move_{};
  Move best_tabu_{};
  int64_t ties_ = 0;
  struct Passed {
    int32_t task = 0;
    int64_t end = 0;
  };
  std::vector<Passed> chain_;
  std::vector<uint8_t> marked_;
  std::vector<int32_t> moved_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TABU_SEARCH_H_
