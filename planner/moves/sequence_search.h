// Local search on a schedule itself: tasks on the critical path change places
// with tasks that they wait for on their rank, judged by one timing sweep.
//
// The schedule is a topological sequence of all tasks. A move brings task b
// ahead of task a of the same rank, together with the tasks between that b
// depends on, or pushes a behind b, together with the tasks that depend on a.
// The order stays free of cycles by construction, and memory is checked in the
// moved range only. The method is simulated annealing with moves as in job-shop
// search (Van Laarhoven, Aarts, Lenstra 1992). An evaluation costs O(tasks),
// about 3 ns for each task.
#ifndef PIPELOOM_PLANNER_MOVES_SEQUENCE_SEARCH_H_
#define PIPELOOM_PLANNER_MOVES_SEQUENCE_SEARCH_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"

namespace pipeloom::planner {

// Searches sequences. Use one per thread.
class SequenceSearch {
 public:
  // Keeps a reference to `graph`.
  explicit SequenceSearch(const FlatGraph& graph);

  // Begins at a sequence. REQUIRES: it is topological and within memory limits.
  void Start(absl::Span<const int32_t> sequence);
  // Tries up to `moves` moves at a temperature in ns, and returns the number of
  // evaluations. Stops early at `target` ns.
  int64_t Run(int64_t moves, double temperature, int64_t target,
              Random& random);

  int64_t current_time() const { return current_; }
  int64_t best_time() const { return best_; }
  absl::Span<const int32_t> best_sequence() const { return best_sequence_; }
  // Goes back to the best sequence.
  void Restart();

 private:
  struct Move {
    int32_t first = 0;  // Runs before `second` on the same rank.
    int32_t second = 0;
  };
  void Accept(int64_t time);
  void SortByStart();
  void FindMoves();
  bool Arrange(int32_t first, int32_t second, bool pull);
  bool FitsMemory(size_t begin, size_t end);

  const FlatGraph* graph_;
  Retimer retimer_;
  std::vector<int32_t> sequence_;
  std::vector<int32_t> position_;  // Indexed by task.
  // Indexed by task: bytes held on its rank before it.
  std::vector<int64_t> held_before_;
  // Indexed by task: the task before on its rank; -1 for none.
  std::vector<int32_t> previous_;
  std::vector<int32_t> next_;
  std::vector<int32_t> last_;  // Indexed by rank.
  std::vector<Move> moves_;
  int64_t current_ = 0;
  int64_t best_ = 0;
  std::vector<int32_t> best_sequence_;
  int64_t accepted_ = 0;
  // State of the move being tried.
  size_t begin_ = 0;
  size_t end_ = 0;
  std::vector<int32_t> undo_;
  std::vector<int32_t> aside_;
  std::vector<uint8_t> marked_;
  std::vector<int64_t> held_;        // Indexed by rank.
  std::vector<int64_t> held_stamp_;  // Indexed by rank.
  int64_t stamp_ = 0;
  std::vector<int64_t> new_held_;
  Random random_{0};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_SEQUENCE_SEARCH_H_
