// The search for which microbatch takes which place in a schedule. Two
// microbatches of equal structure exchange the places of all their tasks, or
// one takes another's and those between move up. Every rank keeps its pattern
// of passes, so the order stays legal (memory is checked if microbatches take
// different amounts). An evaluation is one timing sweep, about a tenth of list
// scheduling.
#ifndef PIPELOOM_PLANNER_MOVES_RELABEL_SEARCH_H_
#define PIPELOOM_PLANNER_MOVES_RELABEL_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/moves/order_search.h"

namespace pipeloom::planner {

// Searches places of microbatches. Use one per thread.
class RelabelSearch {
 public:
  // Keeps a reference to `graph`. O(tasks * structures).
  RelabelSearch(const FlatGraph& graph, const OrderUnits& units);

  // Returns whether any two microbatches of equal structure differ in cost.
  bool can_move() const { return can_move_; }

  // Returns whether every exchange keeps the memory limits. If not, most
  // exchanges may fail.
  bool keeps_memory() const { return !checks_memory_; }

  // Begins at a sequence. REQUIRES: it is topological and within memory limits.
  void Start(absl::Span<const int32_t> sequence);
  // Runs simulated annealing: tries `moves` exchanges at a temperature in ns,
  // and returns the number of evaluations. Stops early at `target` ns.
  int64_t Run(int64_t moves, double temperature, int64_t target,
              Random& random);
  // Makes one random exchange, good or not, and returns the time (ns) of
  // sequence() after it. Exchanges nothing if none of a few tries keeps the
  // memory limits.
  int64_t Kick(Random& random);

  int64_t best_time() const { return best_; }
  absl::Span<const int32_t> sequence() const { return sequence_; }
  absl::Span<const int32_t> best_sequence() const { return best_sequence_; }

 private:
  void FindStructures();
  bool Alike(int32_t a, int32_t b) const;
  bool SameCost(int32_t a, int32_t b) const;
  bool SameMemory(int32_t a, int32_t b) const;
  bool Propose(Random& random);
  // Times the present labels; returns kNoLimit if memory does not suffice.
  int64_t Evaluate();

  const FlatGraph* graph_;
  Retimer retimer_;
  bool can_move_ = false;
  bool checks_memory_ = false;
  // Indexed by microbatch: its tasks by id.
  std::vector<std::vector<int32_t>> tasks_{};
  std::vector<int32_t> structure_{};   // Indexed by microbatch.
  std::vector<int32_t> microbatch_{};  // Indexed by task.
  std::vector<int32_t> index_{};  // Indexed by task: its position in tasks_.

  // For the sequence it started from: microbatch and index of each step, and
  // microbatches by their first step.
  std::vector<int32_t> holder_{};
  std::vector<int32_t> step_index_{};
  std::vector<int32_t> places_{};
  // Indexed by holder: the microbatch that has its place.
  std::vector<int32_t> label_{};
  std::vector<int32_t> saved_{};
  std::vector<int32_t> sequence_{};
  std::vector<int32_t> best_sequence_{};
  std::vector<int64_t> held_{};
  int64_t current_ = 0;
  int64_t best_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_RELABEL_SEARCH_H_
