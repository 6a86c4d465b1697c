// Keeps a greedy scheduler out of memory deadlocks.
//
// With several chunks a rank, a rank can fill with forwards of many
// microbatches so that none of them can go on: the backward that would free
// memory needs another forward on the same full rank. The guard admits a task
// only if from the state after it everything can still be finished: the
// started groups one after another in the order in which they started, then
// the others, each in one fixed "canonical" order of its tasks (a banker's
// check with a fixed sequence). A group is a connected part of the graph: a
// microbatch, as a rule.
//
// Consequences: the first unfinished task of that sequence is always admitted
// once it is ready, so a scheduler that takes any admitted task never gets
// stuck; and whether a ready task is admitted depends on its own rank only, so
// a blocked rank need not be asked again until something new arrives there.
//
// Admits costs O(started groups + log tasks of the group on the rank) for a
// task that takes more than it gives back, on a rank where the limit can bind;
// O(1) otherwise. One guard per thread; Reset makes it new.
#ifndef PIPELOOM_PLANNER_MEMORY_GUARD_H_
#define PIPELOOM_PLANNER_MEMORY_GUARD_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/flat_graph.h"

namespace pipeloom::planner {

// A task that does not fit even when its group runs alone.
struct MemoryShortage {
  int32_t rank = -1;
  int32_t task = -1;
  int64_t bytes_over = 0;
  // By rank: what running the groups one after another needs, without static
  // memory. With these as capacities a schedule exists.
  std::vector<int64_t> needed{};
};

class MemoryGuard {
 public:
  // Keeps a reference to `graph`.
  explicit MemoryGuard(const FlatGraph& graph);

  // Empty `shortage().task` (-1): groups can run one after another.
  const MemoryShortage& shortage() const { return shortage_; }
  int32_t group_of(int32_t task) const { return group_[task]; }
  int32_t num_groups() const { return num_groups_; }

  // Back to nothing started. `capacity` by rank instead of the graph's (empty:
  // the graph's); raised to what one group alone needs where it is less.
  void Reset(absl::Span<const int64_t> capacity = {});
  bool IsStarted(int32_t task) const { return position_[group_[task]] >= 0; }
  bool Admits(int32_t task) const;
  // False: the rank's limit cannot be reached; all is admitted there.
  bool Binds(int32_t rank) const { return binds_[rank] != 0; }
  // Whether any rank binds; if not, Start need not be called.
  bool any_binds() const { return any_binds_; }
  // Whether the task is the first of its group's canonical order on its rank
  // that has not started: the one that is always admitted when its group is
  // the first unfinished one.
  bool IsNextOfGroup(int32_t task);
  // REQUIRES: Admits(task) and its producers were started.
  void Start(int32_t task);

 private:
  void MakeOneGroup();
  void Order(int variant);
  void Measure();
  int64_t& Cell(std::vector<int64_t>& table, int32_t rank, int32_t group) {
    return table[static_cast<size_t>(rank) * static_cast<size_t>(num_groups_) +
                 static_cast<size_t>(group)];
  }
  int64_t Cell(const std::vector<int64_t>& table, int32_t rank,
               int32_t group) const {
    return table[static_cast<size_t>(rank) * static_cast<size_t>(num_groups_) +
                 static_cast<size_t>(group)];
  }
  // What the cell's tasks that are left need beyond what the group holds: the
  // peak of their run in canonical order. As a tree over the tasks, so that
  // one of them is done, or looked at as done, in O(log tasks).
  struct Run {
    int64_t net = 0;   // Taken less given back.
    int64_t peak = 0;  // The most held on the way; 0 when nothing is left.
  };
  static Run Join(const Run& first, const Run& then) {
    return {.net = first.net + then.net,
            .peak = first.peak > first.net + then.peak ? first.peak
                                                       : first.net + then.peak};
  }
  void BuildTrees();
  int64_t NeedWithout(int32_t task) const;
  void SetDone(int32_t task);

  const FlatGraph* graph_;
  int32_t num_groups_ = 0;
  std::vector<int32_t> group_{};      // By task.
  std::vector<int32_t> canonical_{};  // All tasks, group by group.
  // The tasks of a (rank, group) cell in canonical order, compressed rows.
  std::vector<int32_t> cell_task_{};
  std::vector<int32_t> cell_offset_{};
  std::vector<int64_t> full_need_{};  // By (rank, group).
  std::vector<int64_t> total_{};      // By rank: of all allocations.
  std::vector<int32_t> group_size_{};
  // By (rank, group): a perfect binary tree of as many leaves as the next power
  // of two; its root is tree_[tree_offset_], the children of node i of it are
  // nodes 2 i + 1 and 2 i + 2.
  std::vector<int32_t> tree_offset_{};
  std::vector<Run> full_tree_{};
  std::vector<int32_t> leaf_{};  // By task: its node's index within its tree.
  std::vector<int32_t> cell_{};  // By task.
  MemoryShortage shortage_{};

  // State.
  std::vector<int64_t> capacity_{};
  std::vector<uint8_t> binds_{};  // By rank: whether it can be reached.
  bool any_binds_ = false;
  std::vector<Run> tree_{};          // full_tree_ without what is done.
  std::vector<int32_t> position_{};  // By group: in active order; -1: not yet.
  std::vector<int32_t> active_{};    // Groups in the order of their start.
  int32_t next_position_ = 0;
  std::vector<int32_t> left_{};  // By group: tasks not started.
  std::vector<int64_t> held_{};  // By rank.
  std::vector<int64_t> cell_held_{};
  std::vector<int64_t> cell_need_{};
  std::vector<uint8_t> started_{};    // By task, on ranks that bind.
  std::vector<int32_t> cell_next_{};  // Index into cell_task_.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_GUARD_H_
