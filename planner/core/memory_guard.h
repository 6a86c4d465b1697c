// A check that keeps a greedy scheduler out of memory deadlocks.
//
// With several chunks a rank, a rank can fill with forwards of many
// microbatches so that none of them can go on: the backward that would free
// memory needs another forward on the same full rank. The guard admits a task
// only if everything can still be finished from the state after it: the started
// groups one after another in the order in which they started, then the others,
// each in one fixed "canonical" order of its tasks (a banker's check with a
// fixed sequence). A group is a connected part of the graph, usually a
// microbatch.
//
// Consequences: the first unfinished task of that sequence is always admitted
// once it is ready, so a scheduler that takes any admitted task never gets
// stuck. Whether a ready task is admitted depends on its own rank only, so a
// blocked rank need not be asked again until something new arrives there.
//
// Admits costs O(started groups + log tasks of the group on the rank) for a
// task that takes more than it gives back, on a rank where the limit can bind;
// O(1) otherwise. Use one guard per thread; Reset makes it new.
#ifndef PIPELOOM_PLANNER_CORE_MEMORY_GUARD_H_
#define PIPELOOM_PLANNER_CORE_MEMORY_GUARD_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// The task that is most over its rank's limit when its group runs alone; `task`
// is the number of tasks if static memory alone is over.
struct MemoryShortage {
  int32_t rank = -1;
  int32_t task = -1;
  int64_t bytes_over = 0;
  // Indexed by rank: bytes that running the groups one after another needs,
  // without static memory. With these as capacities a schedule exists.
  std::vector<int64_t> needed{};
};

// The guard of one graph.
class MemoryGuard {
 public:
  // Keeps a reference to `graph`.
  explicit MemoryGuard(const FlatGraph& graph);

  // Returns the shortage, with `task` -1 if groups can run one after another.
  const MemoryShortage& shortage() const { return shortage_; }
  int32_t group_of(int32_t task) const { return group_[task]; }
  int32_t num_groups() const { return num_groups_; }

  // Returns to the state in which nothing has started. `capacity`, indexed by
  // rank, replaces the graph's unless it is empty; it is raised where a single
  // group alone needs more. `reserve`, from 0 to 1, is the share of the bytes
  // that started groups may still need on a rank that is kept free for them:
  // tasks of later groups are not admitted if they would use it. Otherwise a
  // rank fills with first chunks of many groups, and the oldest ones, whose
  // ends would free memory, wait for each other.
  void Reset(absl::Span<const int64_t> capacity = {}, double reserve = 0);
  // Returns whether the task's group has started.
  bool IsStarted(int32_t task) const { return position_[group_[task]] >= 0; }
  // Returns whether memory allows the task to start.
  bool Admits(int32_t task) const;
  // Returns whether the rank's limit can be reached; if not, everything is
  // admitted there.
  bool Binds(int32_t rank) const { return ranks_[rank].binds; }
  // Returns the bytes that the rank may still take. REQUIRES: Binds(rank).
  int64_t Room(int32_t rank) const {
    return ranks_[rank].capacity - ranks_[rank].held;
  }
  // Returns whether any rank binds; if not, Start need not be called.
  bool any_binds() const { return any_binds_; }
  // Returns whether the task is the first unstarted one in its group's
  // canonical order on its rank. That task is always admitted if its group is
  // the first unfinished one.
  bool IsNextOfGroup(int32_t task);
  // The values that are alike for all tasks of unstarted groups on a rank, for
  // checking many of them: AdmitsFresh then agrees with Admits, and takes O(log
  // tasks of the group on the rank).
  struct FreshRoom {
    int64_t most_net =
        // The most bytes that a task may keep without being in a started
        // group's way.
        0;
    int64_t room = 0;  // Bytes free behind all started groups.
    // Bytes free now that are not reserved for started groups.
    int64_t unreserved = 0;
  };
  FreshRoom RoomForFresh(int32_t rank) const;
  // Returns Admits(task). REQUIRES: the task's group has not started, and
  // Binds(its rank).
  bool AdmitsFresh(int32_t task, const FreshRoom& fresh) const;
  // Marks a task as started. REQUIRES: Admits(task), and its producers were
  // started.
  void Start(int32_t task);

 private:
  // The needs of the tasks of a cell, in canonical order, in addition to what
  // its group holds; bytes.
  struct Run {
    int64_t net = 0;   // Taken less given back.
    int64_t peak = 0;  // The most held on the way; 0 if nothing is left.
  };
  static Run Join(const Run& first, const Run& then) {
    return {.net = first.net + then.net,
            .peak = first.peak > first.net + then.peak ? first.peak
                                                       : first.net + then.peak};
  }
  // The tasks of a (rank, group) cell lie in slots of canonical order, kBlock
  // slots to a block; a done task leaves zeros. A cell of more than one block
  // has a perfect binary tree over the runs of its blocks, so that marking a
  // task as done, or asking what the rest would need without it, takes O(kBlock
  // + log tasks).
  static constexpr int32_t kBlock = 8;
  struct Slot {
    int64_t alloc = 0;
    int64_t net = 0;
  };
  struct Block {
    int32_t first_slot = 0;
    int32_t num_slots = 0;
  };
  struct Cell {
    int64_t held = 0;
    int64_t need = 0;  // Peak of the run of the tasks that are left.
    int32_t next = 0;  // No slot before this one is left.
  };
  struct CellShape {
    int32_t first_block = 0;
    int32_t num_blocks = 0;
    // First node of its tree; the children of node i are nodes 2 i + 1 and 2 i
    // + 2, and the first block is node `leaves` - 1. Unused for a single block.
    int32_t tree = 0;
    int32_t leaves = 0;
  };
  struct TaskInfo {
    int64_t alloc = 0;
    int64_t net = 0;
    int32_t rank = 0;
    int32_t group = 0;
    int32_t cell = 0;
    int32_t block = 0;
    int32_t slot = 0;
  };
  struct RankState {
    int64_t capacity = 0;
    int64_t held = 0;
    bool binds = false;  // Whether the capacity can be reached.
  };

  void MakeOneGroup();
  void Order(int variant);
  void Measure();
  void BuildBlocks();
  size_t CellOf(int32_t rank, int32_t group) const {
    return static_cast<size_t>(rank) * static_cast<size_t>(num_groups_) +
           static_cast<size_t>(group);
  }
  // Returns the run of the block's tasks that are left, except for the one in
  // slot `without`.
  Run RunOf(const Block& block, int32_t without) const;
  int64_t Reserved(int64_t needed) const {
    return reserve_ > 0
               ? static_cast<int64_t>(reserve_ * static_cast<double>(needed))
               : 0;
  }
  int64_t NeedWithout(const TaskInfo& task) const;
  // Marks the task as done; returns what the cell then needs.
  int64_t SetDone(const TaskInfo& task);

  const FlatGraph* graph_;
  int32_t num_groups_ = 0;
  std::vector<int32_t> group_{};      // Indexed by task.
  std::vector<int32_t> canonical_{};  // All tasks, group by group.
  // The tasks of a (rank, group) cell in canonical order, compressed rows.
  std::vector<int32_t> cell_task_{};
  std::vector<int32_t> cell_offset_{};
  std::vector<int64_t> total_{};  // Indexed by rank: sum of all allocations.
  std::vector<int32_t> group_size_{};
  std::vector<TaskInfo> info_{};     // Indexed by task.
  std::vector<CellShape> shapes_{};  // Indexed by cell.
  std::vector<Block> blocks_{};
  // The state before anything has started.
  std::vector<Cell> full_cells_{};
  std::vector<Slot> full_slots_{};
  std::vector<Run> full_tree_{};
  MemoryShortage shortage_{};

  // The present state.
  std::vector<RankState> ranks_{};
  bool any_binds_ = false;
  double reserve_ = 0;
  std::vector<Cell> cells_{};
  std::vector<Slot> slots_{};
  std::vector<Run> tree_{};
  std::vector<uint8_t> started_{};  // Indexed by slot.
  // Indexed by group: place in the order of starts; -1 if not started.
  std::vector<int32_t> position_{};
  std::vector<int32_t> active_{};  // Groups in the order of their start.
  int32_t next_position_ = 0;
  // Indexed by group: number of tasks not started.
  std::vector<int32_t> left_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_MEMORY_GUARD_H_
