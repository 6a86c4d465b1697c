// Which microbatch takes which place in a schedule: two microbatches of equal
// structure exchange the places of all their tasks, or one takes another's and
// those between move up. Every rank keeps its pattern of passes, so the order
// stays legal (memory is checked where microbatches take different amounts).
// An evaluation is one timing sweep, about a tenth of list scheduling.
// One per thread.
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

class RelabelSearch {
 public:
  // Keeps a reference to `graph`. O(tasks * structures).
  RelabelSearch(const FlatGraph& graph, const OrderUnits& units);

  // Whether any two microbatches of equal structure differ in cost.
  bool can_move() const { return can_move_; }

  // Whether every exchange keeps the memory limits. Where not, most may be in
  // vain.
  bool keeps_memory() const { return !checks_memory_; }

  // REQUIRES: topological, within memory limits.
  void Start(absl::Span<const int32_t> sequence);
  // Simulated annealing: tries `moves` at a temperature in ns; returns the
  // number of evaluations. Stops early at `target`.
  int64_t Run(int64_t moves, double temperature, int64_t target,
              Random& random);
  // One random exchange, good or not; the time of sequence() after it. Nothing
  // is exchanged when none of a few keeps the memory limits.
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
  // Of the present labels; kNoLimit when memory does not suffice.
  int64_t Evaluate();

  const FlatGraph* graph_;
  Retimer retimer_;
  bool can_move_ = false;
  bool checks_memory_ = false;
  std::vector<std::vector<int32_t>> tasks_{};  // By microbatch, by id.
  std::vector<int32_t> structure_{};           // By microbatch.
  std::vector<int32_t> microbatch_{};          // By task.
  std::vector<int32_t> index_{};               // By task: where in tasks_.

  // Of the sequence it started from: the microbatch and index of each step,
  // and microbatches by their first step.
  std::vector<int32_t> holder_{};
  std::vector<int32_t> step_index_{};
  std::vector<int32_t> places_{};
  std::vector<int32_t> label_{};  // By holder: who has its place now.
  std::vector<int32_t> saved_{};
  std::vector<int32_t> sequence_{};
  std::vector<int32_t> best_sequence_{};
  std::vector<int64_t> held_{};
  int64_t current_ = 0;
  int64_t best_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_RELABEL_SEARCH_H_
