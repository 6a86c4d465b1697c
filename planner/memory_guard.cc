#include "planner/memory_guard.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

namespace pipeloom::planner {
namespace {

// (rank, group) cells beyond which the tables would be too large.
constexpr int64_t kMostCells = int64_t{1} << 24;

// Orders to try in which a group may fit; the first that fits is kept.
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
  // Groups are numbered by their first task. Where a group keeps memory for
  // good, the groups' order matters: then all are one group.
  std::vector<int32_t> number(static_cast<size_t>(graph.num_tasks), -1);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    const int32_t root = Root(parent, t);
    if (number[root] < 0) number[root] = num_groups_++;
    group_[t] = number[root];
  }
  if (int64_t{num_groups_} * graph.num_ranks > kMostCells) MakeOneGroup();
  std::vector<int64_t> leak(static_cast<size_t>(num_groups_) *
                            static_cast<size_t>(graph.num_ranks));
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    Cell(leak, graph.rank[t], group_[t]) += graph.alloc[t] - graph.free[t];
  }
  if (std::any_of(leak.begin(), leak.end(), [](int64_t b) { return b != 0; })) {
    MakeOneGroup();
  }

  for (int variant = 0; variant < kVariants; ++variant) {
    Order(variant);
    const MemoryShortage before = shortage_;
    Measure();
    if (shortage_.task < 0) break;
    // Report the variant that is least over.
    if (variant > 0 && before.bytes_over <= shortage_.bytes_over) {
      shortage_ = before;
    }
  }
  BuildTrees();
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
  // Group by group; among ready tasks: what frees first (variant 0), by id
  // (variant 1), least memory first (variant 2).
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

  const size_t cells =
      static_cast<size_t>(num_groups_) * static_cast<size_t>(g.num_ranks);
  const auto cell_of = [&](int32_t t) {
    return static_cast<size_t>(g.rank[t]) * static_cast<size_t>(num_groups_) +
           static_cast<size_t>(group_[t]);
  };
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
  full_need_.assign(
      static_cast<size_t>(num_groups_) * static_cast<size_t>(g.num_ranks), 0);
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    if (g.capacity[r] < 0 && -g.capacity[r] > shortage_.bytes_over) {
      shortage_.rank = r;
      shortage_.task = g.num_tasks;  // Static memory alone.
      shortage_.bytes_over = -g.capacity[r];
    }
    for (int32_t group = 0; group < num_groups_; ++group) {
      const size_t cell =
          static_cast<size_t>(r) * static_cast<size_t>(num_groups_) +
          static_cast<size_t>(group);
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
      full_need_[cell] = peak;
      shortage_.needed[r] = std::max(shortage_.needed[r], peak);
    }
  }
}

void MemoryGuard::Reset(absl::Span<const int64_t> capacity) {
  const FlatGraph& g = *graph_;
  if (capacity.empty()) capacity = g.capacity;
  capacity_.assign(capacity.begin(), capacity.end());
  binds_.assign(static_cast<size_t>(g.num_ranks), 0);
  any_binds_ = false;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    capacity_[r] = std::min(std::max(capacity_[r], shortage_.needed[r]),
                            std::max(g.capacity[r], shortage_.needed[r]));
    binds_[r] = total_[r] > capacity_[r] ? 1 : 0;
    any_binds_ = any_binds_ || binds_[r] != 0;
  }
  held_.assign(static_cast<size_t>(g.num_ranks), 0);
  position_.assign(static_cast<size_t>(num_groups_), -1);
  next_position_ = 0;
  if (!any_binds_) return;
  tree_ = full_tree_;
  active_.clear();
  left_ = group_size_;
  started_.assign(group_.size(), 0);
  cell_next_.assign(cell_offset_.begin(), cell_offset_.end() - 1);
  cell_held_.assign(full_need_.size(), 0);
  cell_need_ = full_need_;
}

void MemoryGuard::BuildTrees() {
  const FlatGraph& g = *graph_;
  leaf_.assign(static_cast<size_t>(g.num_tasks), 0);
  cell_.assign(static_cast<size_t>(g.num_tasks), 0);
  tree_offset_.clear();
  full_tree_.clear();
  for (size_t cell = 0; cell + 1 < cell_offset_.size(); ++cell) {
    const int32_t begin = cell_offset_[cell];
    const int32_t count = cell_offset_[cell + 1] - begin;
    const auto leaves =
        static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(count)));
    const size_t root = full_tree_.size();
    tree_offset_.push_back(static_cast<int32_t>(root));
    if (count == 0) continue;
    full_tree_.resize(root + 2 * static_cast<size_t>(leaves) - 1);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t t = cell_task_[begin + i];
      cell_[t] = static_cast<int32_t>(cell);
      leaf_[t] = leaves - 1 + i;
      full_tree_[root + static_cast<size_t>(leaf_[t])] = {
          .net = g.alloc[t] - g.free[t], .peak = g.alloc[t]};
    }
    for (int32_t node = leaves - 2; node >= 0; --node) {
      const size_t left = root + 2 * static_cast<size_t>(node) + 1;
      full_tree_[root + static_cast<size_t>(node)] =
          Join(full_tree_[left], full_tree_[left + 1]);
    }
  }
}

int64_t MemoryGuard::NeedWithout(int32_t task) const {
  const Run* tree = &tree_[tree_offset_[cell_[task]]];
  Run run{};
  for (int32_t node = leaf_[task]; node > 0; node = (node - 1) / 2) {
    run = node % 2 == 1 ? Join(run, tree[node + 1]) : Join(tree[node - 1], run);
  }
  return run.peak;
}

void MemoryGuard::SetDone(int32_t task) {
  Run* tree = &tree_[tree_offset_[cell_[task]]];
  int32_t node = leaf_[task];
  tree[node] = {};
  while (node > 0) {
    node = (node - 1) / 2;
    tree[node] = Join(tree[2 * node + 1], tree[2 * node + 2]);
  }
}

bool MemoryGuard::Admits(int32_t task) const {
  const FlatGraph& g = *graph_;
  const int32_t r = g.rank[task];
  if (binds_[r] == 0) return true;
  const int64_t capacity = capacity_[r];
  if (held_[r] + g.alloc[task] > capacity) return false;
  const int64_t net = g.alloc[task] - g.free[task];
  // Run earlier than in the sequence, such a task only lowers what the others
  // meet.
  if (net <= 0) return true;
  const int32_t group = group_[task];
  const size_t row = static_cast<size_t>(r) * static_cast<size_t>(num_groups_);
  int64_t held = held_[r] + net;
  if (position_[group] >= 0) {
    for (const int32_t other : active_) {
      if (other == group) break;
      if (held + cell_need_[row + static_cast<size_t>(other)] > capacity) {
        return false;
      }
      held -= cell_held_[row + static_cast<size_t>(other)];
    }
  } else {
    for (const int32_t other : active_) {
      if (held + cell_need_[row + static_cast<size_t>(other)] > capacity) {
        return false;
      }
      held -= cell_held_[row + static_cast<size_t>(other)];
    }
  }
  return held + NeedWithout(task) <= capacity;
}

bool MemoryGuard::IsNextOfGroup(int32_t task) {
  const int32_t cell = cell_[task];
  int32_t& next = cell_next_[cell];
  while (started_[cell_task_[next]] != 0) ++next;
  return cell_task_[next] == task;
}

void MemoryGuard::Start(int32_t task) {
  const FlatGraph& g = *graph_;
  const int32_t group = group_[task];
  if (position_[group] < 0) {
    position_[group] = next_position_++;
    if (any_binds_) active_.push_back(group);
  }
  if (!any_binds_) return;
  const int32_t r = g.rank[task];
  if (binds_[r] != 0) {
    started_[task] = 1;
    SetDone(task);
    const int64_t net = g.alloc[task] - g.free[task];
    held_[r] += net;
    Cell(cell_held_, r, group) += net;
    Cell(cell_need_, r, group) = tree_[tree_offset_[cell_[task]]].peak;
  }
  if (--left_[group] == 0) {
    active_.erase(std::find(active_.begin(), active_.end(), group));
  }
}

}  // namespace pipeloom::planner
