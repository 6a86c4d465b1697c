#include "planner/core/memory_guard.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

namespace pipeloom::planner {
namespace {

// The most (rank, group) cells; with more, the tables would be too large.
constexpr int64_t kMaxCells = int64_t{1} << 24;

// Number of orders to try for fitting groups; the first that fits is kept.
constexpr int kVariants = 3;

int32_t Root(std::vector<int32_t>& parent, int32_t t) {
  while (parent[t] != t) {
    parent[t] = parent[parent[t]];
    t = parent[t];
  }
  return t;
}

}  // namespace

MemoryGuard::MemoryGuard(const FlatGraph& graph)
    : graph_(&graph), group_(static_cast<size_t>(graph.num_tasks)) {
  std::vector<int32_t> parent(static_cast<size_t>(graph.num_tasks));
  std::iota(parent.begin(), parent.end(), 0);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    for (int32_t e = graph.pred_offset[t]; e < graph.pred_offset[t + 1]; ++e) {
      const int32_t a = Root(parent, graph.pred[e]);
      const int32_t b = Root(parent, t);
      parent[std::max(a, b)] = std::min(a, b);
    }
  }
  // Groups are numbered by their first task. If any group keeps memory for
  // good, the groups' order matters; then all tasks are one group.
  std::vector<int32_t> number(static_cast<size_t>(graph.num_tasks), -1);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    const int32_t root = Root(parent, t);
    if (number[root] < 0) number[root] = num_groups_++;
    group_[t] = number[root];
  }
  if (int64_t{num_groups_} * graph.num_ranks > kMaxCells) MakeOneGroup();
  std::vector<int64_t> leak(static_cast<size_t>(num_groups_) *
                            static_cast<size_t>(graph.num_ranks));
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    leak[CellOf(graph.rank[t], group_[t])] += graph.alloc[t] - graph.free[t];
  }
  if (std::any_of(leak.begin(), leak.end(), [](int64_t b) { return b != 0; })) {
    MakeOneGroup();
  }

  for (int variant = 0; variant < kVariants; ++variant) {
    Order(variant);
    const MemoryShortage before = shortage_;
    Measure();
    if (shortage_.task < 0) break;
    // Reports the variant that is least over.
    if (variant > 0 && before.bytes_over <= shortage_.bytes_over) {
      shortage_ = before;
    }
  }
  BuildBlocks();
  total_.assign(static_cast<size_t>(graph.num_ranks), 0);
  group_size_.assign(static_cast<size_t>(num_groups_), 0);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    total_[graph.rank[t]] += graph.alloc[t];
    ++group_size_[group_[t]];
  }
  Reset();
}

void MemoryGuard::MakeOneGroup() {
  std::fill(group_.begin(), group_.end(), 0);
  num_groups_ = 1;
}

void MemoryGuard::Order(int variant) {
  const FlatGraph& g = *graph_;
  canonical_.clear();
  std::vector<int32_t> missing(static_cast<size_t>(g.num_tasks));
  // Orders tasks group by group. Among ready tasks, those go first that free
  // most (variant 0: weight gradients, then backwards), have the smallest id
  // (variant 1), or keep the least memory (variant 2).
  using Key = std::tuple<int32_t, int64_t, int32_t>;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  const auto push = [&](int32_t t) {
    int64_t key = 0;
    if (variant == 0) {
      key = g.pass[t] == Pass::kWeightGrad ? 0
            : g.pass[t] == Pass::kBackward ? 1
                                           : 2;
    } else if (variant == 2) {
      key = g.alloc[t] - g.free[t];
    }
    ready.emplace(group_[t], key, t);
  };
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    missing[t] = g.pred_offset[t + 1] - g.pred_offset[t];
    if (missing[t] == 0) push(t);
  }
  while (!ready.empty()) {
    const int32_t t = std::get<2>(ready.top());
    ready.pop();
    canonical_.push_back(t);
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      if (--missing[g.succ[e]] == 0) push(g.succ[e]);
    }
  }

  const size_t cells = CellOf(g.num_ranks, 0);
  const auto cell_of = [&](int32_t t) { return CellOf(g.rank[t], group_[t]); };
  cell_offset_.assign(cells + 1, 0);
  for (const int32_t t : canonical_) ++cell_offset_[cell_of(t) + 1];
  for (size_t c = 0; c < cells; ++c) cell_offset_[c + 1] += cell_offset_[c];
  cell_task_.resize(canonical_.size());
  std::vector<int32_t> next(cell_offset_.begin(), cell_offset_.end() - 1);
  for (const int32_t t : canonical_) cell_task_[next[cell_of(t)]++] = t;
}

void MemoryGuard::Measure() {
  const FlatGraph& g = *graph_;
  shortage_ = {};
  shortage_.needed.assign(static_cast<size_t>(g.num_ranks), 0);
  full_cells_.assign(CellOf(g.num_ranks, 0), {});
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    if (g.capacity[r] < 0 && -g.capacity[r] > shortage_.bytes_over) {
      shortage_.rank = r;
      shortage_.task = g.num_tasks;  // Static memory alone is over.
      shortage_.bytes_over = -g.capacity[r];
    }
    for (int32_t group = 0; group < num_groups_; ++group) {
      const size_t cell = CellOf(r, group);
      int64_t held = 0;
      int64_t peak = 0;
      for (int32_t i = cell_offset_[cell]; i < cell_offset_[cell + 1]; ++i) {
        const int32_t t = cell_task_[i];
        held += g.alloc[t];
        peak = std::max(peak, held);
        if (held - g.capacity[r] > shortage_.bytes_over) {
          shortage_.rank = r;
          shortage_.task = t;
          shortage_.bytes_over = held - g.capacity[r];
        }
        held -= g.free[t];
      }
      full_cells_[cell] = {.need = peak, .next = cell_offset_[cell]};
      shortage_.needed[r] = std::max(shortage_.needed[r], peak);
    }
  }
}

void MemoryGuard::BuildBlocks() {
  const FlatGraph& g = *graph_;
  info_.assign(static_cast<size_t>(g.num_tasks), {});
  shapes_.clear();
  blocks_.clear();
  full_slots_.clear();
  full_tree_.clear();
  for (size_t cell = 0; cell + 1 < cell_offset_.size(); ++cell) {
    const int32_t begin = cell_offset_[cell];
    const int32_t count = cell_offset_[cell + 1] - begin;
    CellShape shape{.first_block = static_cast<int32_t>(blocks_.size()),
                    .num_blocks = (count + kBlock - 1) / kBlock,
                    .tree = static_cast<int32_t>(full_tree_.size())};
    for (int32_t i = 0; i < count; ++i) {
      const int32_t t = cell_task_[begin + i];
      const auto slot = static_cast<int32_t>(full_slots_.size());
      if (i % kBlock == 0) blocks_.push_back({.first_slot = slot});
      ++blocks_.back().num_slots;
      const int64_t net = g.alloc[t] - g.free[t];
      full_slots_.push_back({.alloc = g.alloc[t], .net = net});
      info_[t] = {.alloc = g.alloc[t],
                  .net = net,
                  .rank = g.rank[t],
                  .group = group_[t],
                  .cell = static_cast<int32_t>(cell),
                  .block = static_cast<int32_t>(blocks_.size()) - 1,
                  .slot = slot};
    }
    shapes_.push_back(shape);
    if (shape.num_blocks > 1) {
      shape.leaves = static_cast<int32_t>(
          std::bit_ceil(static_cast<uint32_t>(shape.num_blocks)));
      shapes_.back() = shape;
      full_tree_.resize(full_tree_.size() +
                        2 * static_cast<size_t>(shape.leaves) - 1);
    }
  }
  slots_ = full_slots_;
  for (const CellShape& shape : shapes_) {
    if (shape.num_blocks < 2) continue;
    Run* const tree = &full_tree_[shape.tree];
    for (int32_t i = 0; i < shape.num_blocks; ++i) {
      tree[shape.leaves - 1 + i] = RunOf(blocks_[shape.first_block + i], -1);
    }
    for (int32_t node = shape.leaves - 2; node >= 0; --node) {
      tree[node] = Join(tree[2 * node + 1], tree[2 * node + 2]);
    }
  }
}

void MemoryGuard::Reset(absl::Span<const int64_t> capacity, double reserve) {
  reserve_ = reserve;
  const FlatGraph& g = *graph_;
  if (capacity.empty()) capacity = g.capacity;
  ranks_.assign(static_cast<size_t>(g.num_ranks), {});
  any_binds_ = false;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    RankState& rank = ranks_[r];
    rank.capacity = std::min(std::max(capacity[r], shortage_.needed[r]),
                             std::max(g.capacity[r], shortage_.needed[r]));
    rank.binds = total_[r] > rank.capacity;
    any_binds_ = any_binds_ || rank.binds;
  }
  position_.assign(static_cast<size_t>(num_groups_), -1);
  next_position_ = 0;
  if (!any_binds_) return;
  active_.clear();
  left_ = group_size_;
  cells_ = full_cells_;
  slots_ = full_slots_;
  tree_ = full_tree_;
  started_.assign(slots_.size(), 0);
}

MemoryGuard::Run MemoryGuard::RunOf(const Block& block, int32_t without) const {
  // Goes over all slots without branches, as which of them are left is
  // unpredictable.
  const Slot* const slots = &slots_[block.first_slot];
  without -= block.first_slot;
  Run run{};
  for (int32_t i = 0; i < block.num_slots; ++i) {
    const int64_t mask = i == without ? 0 : -1;
    run.peak = std::max(run.peak, run.net + (slots[i].alloc & mask));
    run.net += slots[i].net & mask;
  }
  return run;
}

int64_t MemoryGuard::NeedWithout(const TaskInfo& task) const {
  Run run = RunOf(blocks_[task.block], task.slot);
  const CellShape& shape = shapes_[task.cell];
  if (shape.num_blocks == 1) return run.peak;
  const Run* const tree = &tree_[shape.tree];
  for (int32_t node = shape.leaves - 1 + task.block - shape.first_block;
       node > 0; node = (node - 1) / 2) {
    run = node % 2 == 1 ? Join(run, tree[node + 1]) : Join(tree[node - 1], run);
  }
  return run.peak;
}

int64_t MemoryGuard::SetDone(const TaskInfo& task) {
  slots_[task.slot] = {};
  started_[task.slot] = 1;
  const Run run = RunOf(blocks_[task.block], -1);
  const CellShape& shape = shapes_[task.cell];
  if (shape.num_blocks == 1) return run.peak;
  Run* const tree = &tree_[shape.tree];
  int32_t node = shape.leaves - 1 + task.block - shape.first_block;
  tree[node] = run;
  while (node > 0) {
    node = (node - 1) / 2;
    tree[node] = Join(tree[2 * node + 1], tree[2 * node + 2]);
  }
  return tree[0].peak;
}

bool MemoryGuard::Admits(int32_t t) const {
  const TaskInfo& task = info_[t];
  const RankState& rank = ranks_[task.rank];
  if (!rank.binds) return true;
  if (rank.held + task.alloc > rank.capacity) return false;
  // If such a task runs earlier than in the sequence, others only meet less
  // memory in use.
  if (task.net <= 0) return true;
  const Cell* const row = &cells_[CellOf(task.rank, 0)];
  int64_t room = rank.capacity - rank.held - task.net;
  // A group that has not started comes behind all that have.
  int64_t needed = 0;
  for (const int32_t other : active_) {
    if (other == task.group) break;
    if (row[other].need > room) return false;
    room += row[other].held;
    needed += row[other].need;
  }
  if (task.alloc + Reserved(needed) > rank.capacity - rank.held) return false;
  // Without the task the rest of its group needs no more than with it.
  return cells_[task.cell].need <= room || NeedWithout(task) <= room;
}

MemoryGuard::FreshRoom MemoryGuard::RoomForFresh(int32_t rank) const {
  const Cell* const row = &cells_[CellOf(rank, 0)];
  FreshRoom fresh{.most_net = std::numeric_limits<int64_t>::max(),
                  .room = Room(rank)};
  int64_t needed = 0;
  for (const int32_t other : active_) {
    fresh.most_net = std::min(fresh.most_net, fresh.room - row[other].need);
    fresh.room += row[other].held;
    needed += row[other].need;
  }
  fresh.unreserved = Room(rank) - Reserved(needed);
  return fresh;
}

bool MemoryGuard::AdmitsFresh(int32_t t, const FreshRoom& fresh) const {
  const TaskInfo& task = info_[t];
  if (task.alloc > Room(task.rank)) return false;
  if (task.net <= 0) return true;
  if (task.alloc > fresh.unreserved) return false;
  return task.net <= fresh.most_net &&
         NeedWithout(task) <= fresh.room - task.net;
}

bool MemoryGuard::IsNextOfGroup(int32_t t) {
  const TaskInfo& task = info_[t];
  int32_t& next = cells_[task.cell].next;
  while (started_[next] != 0) ++next;
  return next == task.slot;
}

void MemoryGuard::Start(int32_t t) {
  const TaskInfo& task = info_[t];
  if (position_[task.group] < 0) {
    position_[task.group] = next_position_++;
    if (any_binds_) active_.push_back(task.group);
  }
  if (!any_binds_) return;
  RankState& rank = ranks_[task.rank];
  if (rank.binds) {
    Cell& cell = cells_[task.cell];
    rank.held += task.net;
    cell.held += task.net;
    cell.need = SetDone(task);
  }
  if (--left_[task.group] == 0) {
    active_.erase(std::find(active_.begin(), active_.end(), task.group));
  }
}

}  // namespace pipeloom::planner
