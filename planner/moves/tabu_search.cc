#include "planner/moves/tabu_search.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace pipeloom::planner {
namespace {

// The most tasks by which a task is moved inside a block.
constexpr int32_t kReach = 10;
constexpr size_t kTabuSlots = size_t{1} << 14;
constexpr int64_t kMaxTenure = 40;

}  // namespace

TabuSearch::Neighbours TabuSearch::FirstTwo(absl::Span<const int32_t> tasks,
                                            absl::Span<const int64_t> delays,
                                            int32_t none) {
  constexpr int64_t kMaxDelay = std::numeric_limits<int32_t>::max();
  Neighbours result{.first = none, .second = none};
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (i == 0 && delays[i] <= kMaxDelay) {
      result.first = tasks[i];
      result.first_delay = static_cast<int32_t>(delays[i]);
    } else if (i == 1 && delays[i] <= kMaxDelay) {
      result.second = tasks[i];
      result.second_delay = static_cast<int32_t>(delays[i]);
    } else {
      result.more = 1;
    }
  }
  return result;
}

TabuSearch::TabuSearch(const FlatGraph& graph)
    : graph_(&graph),
      nodes_(static_cast<size_t>(graph.num_tasks + 1 + graph.num_ranks)),
      producers_(static_cast<size_t>(graph.num_tasks)),
      consumers_(static_cast<size_t>(graph.num_tasks)),
      last_(static_cast<size_t>(graph.num_ranks), none_ahead()),
      tabu_until_(kTabuSlots, 0),
      marked_(static_cast<size_t>(graph.num_tasks), 0) {
  const int32_t ranks = std::max(1, graph.num_ranks);
  tenure_ = std::min<int64_t>(10 + graph.num_tasks / (int64_t{ranks} * ranks),
                              kMaxTenure);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    nodes_[t].duration = graph.duration[t];
    nodes_[t].rank = graph.rank[t];
    const auto row = [&](const auto& values, const auto& offset) {
      return absl::MakeConstSpan(values).subspan(
          static_cast<size_t>(offset[t]),
          static_cast<size_t>(offset[t + 1] - offset[t]));
    };
    producers_[t] =
        FirstTwo(row(graph.pred, graph.pred_offset),
                 row(graph.pred_delay, graph.pred_offset), none_ahead());
    consumers_[t] =
        FirstTwo(row(graph.succ, graph.succ_offset),
                 row(graph.succ_delay, graph.succ_offset), none_ahead());
  }
  for (int32_t r = 0; r < graph.num_ranks; ++r) {
    nodes_[none_behind(r)].left = graph.epilogue[r];
  }
}

void TabuSearch::SweepHeads(size_t from) {
  Node* const nodes = nodes_.data();
  for (size_t i = from; i < sequence_.size(); ++i) {
    const int32_t t = sequence_[i];
    const Neighbours& in = producers_[t];
    int64_t at = std::max(nodes[in.first].end + in.first_delay,
                          nodes[in.second].end + in.second_delay);
    if (in.more != 0) [[unlikely]] {
      const FlatGraph& g = *graph_;
      for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
        at = std::max(at, nodes[g.pred[e]].end + g.pred_delay[e]);
      }
    }
    Node& node = nodes[t];
    node.job_head = at;
    node.end = std::max(at, nodes[node.previous].end) + node.duration;
  }
}

void TabuSearch::SweepTails(size_t until) {
  Node* const nodes = nodes_.data();
  for (size_t i = until; i-- > 0;) {
    const int32_t t = sequence_[i];
    const Neighbours& out = consumers_[t];
    int64_t after = std::max(nodes[out.first].left + out.first_delay,
                             nodes[out.second].left + out.second_delay);
    if (out.more != 0) [[unlikely]] {
      const FlatGraph& g = *graph_;
      for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
        after = std::max(after, nodes[g.succ[e]].left + g.succ_delay[e]);
      }
    }
    Node& node = nodes[t];
    node.job_tail = after;
    node.left = std::max(after, nodes[node.next].left) + node.duration;
  }
}

void TabuSearch::CountTime() {
  current_ = 0;
  for (int32_t r = 0; r < graph_->num_ranks; ++r) {
    current_ = std::max(current_, nodes_[last_[r]].end + graph_->epilogue[r]);
  }
}

void TabuSearch::SweepAll() {
  const FlatGraph& g = *graph_;
  std::fill(last_.begin(), last_.end(), none_ahead());
  for (size_t i = 0; i < sequence_.size(); ++i) {
    const int32_t t = sequence_[i];
    Node& node = nodes_[t];
    node.position = static_cast<int32_t>(i);
    node.previous = last_[node.rank];
    node.next = none_behind(node.rank);
    node.held = 0;
    if (IsTask(node.previous)) {
      const int32_t p = node.previous;
      nodes_[p].next = t;
      node.held = nodes_[p].held + g.alloc[p] - g.free[p];
    }
    last_[node.rank] = t;
  }
  SweepHeads(0);
  SweepTails(sequence_.size());
  CountTime();
}

void TabuSearch::Start(absl::Span<const int32_t> sequence) {
  sequence_.assign(sequence.begin(), sequence.end());
  // This is beyond every tenure of the last search, so nothing is tabu.
  iteration_ += 2 * kMaxTenure;
  started_ = iteration_;
  SweepAll();
  best_ = current_;
  best_sequence_ = sequence_;
  stalled_ = 0;
}

size_t TabuSearch::Slot(int32_t first, int32_t second) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(first)) *
                           0x9E3779B97F4A7C15u ^
                       static_cast<uint64_t>(static_cast<uint32_t>(second)) *
                           0xC2B2AE3D27D4EB4Fu;
  return static_cast<size_t>(key >> 40) % kTabuSlots;
}

void TabuSearch::FindPath(Random& random) {
  const FlatGraph& g = *graph_;
  path_.clear();
  int32_t t = none_ahead();
  int64_t choices = 0;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    if (!IsTask(last_[r]) || nodes_[last_[r]].end + g.epilogue[r] != current_) {
      continue;
    }
    if (random.Below(++choices) == 0) t = last_[r];
  }
  uint64_t coins = random.Next();
  while (IsTask(t)) {
    path_.push_back(t);
    const Node& node = nodes_[t];
    const int64_t start = node.end - node.duration;
    const bool by_rank =
        IsTask(node.previous) && nodes_[node.previous].end == start;
    int32_t producer = none_ahead();
    if (node.job_head == start) {
      for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
        if (nodes_[g.pred[e]].end + g.pred_delay[e] == start) {
          producer = g.pred[e];
          if (producer == node.previous) break;
        }
      }
    }
    // If both hold it back, takes one at random.
    coins = coins >> 1 | coins << 63;
    t = by_rank && (!IsTask(producer) || producer == node.previous ||
                    (coins & 1) != 0)
            ? node.previous
            : producer;
  }
  std::reverse(path_.begin(), path_.end());
}

bool TabuSearch::KeepsOrder(int32_t task, int32_t target, bool forward) const {
  const FlatGraph& g = *graph_;
  const Node& b = nodes_[target];
  // A path from x to y implies that x's `left` is no less than y's, and that x
  // ends no later than y starts. "None" passes the check.
  if (forward) {
    const int64_t start = b.end - b.duration;
    const auto is_free = [&](int32_t consumer) {
      const Node& s = nodes_[consumer];
      return s.left < b.left || (start < s.end && consumer != target);
    };
    const Neighbours& out = consumers_[task];
    if (!is_free(out.first) || !is_free(out.second)) return false;
    if (out.more != 0) [[unlikely]] {
      for (int32_t e = g.succ_offset[task]; e < g.succ_offset[task + 1]; ++e) {
        if (!is_free(g.succ[e])) return false;
      }
    }
    return true;
  }
  const int64_t after = b.left - b.duration;
  const auto is_free = [&](int32_t producer) {
    const Node& p = nodes_[producer];
    return producer != target && (p.end - p.duration < b.end || after < p.left);
  };
  const Neighbours& in = producers_[task];
  if (!is_free(in.first) || !is_free(in.second)) return false;
  if (in.more != 0) [[unlikely]] {
    for (int32_t e = g.pred_offset[task]; e < g.pred_offset[task + 1]; ++e) {
      if (!is_free(g.pred[e])) return false;
    }
  }
  return true;
}

bool TabuSearch::FitsMemory(int32_t task, int32_t target, bool forward) const {
  const FlatGraph& g = *graph_;
  const int64_t capacity = g.capacity[nodes_[task].rank];
  if (capacity >= kNoLimit) return true;
  const int64_t net = g.alloc[task] - g.free[task];
  if (forward) {
    if (net < 0) {
      for (int32_t t = nodes_[task].next;; t = nodes_[t].next) {
        if (nodes_[t].held - net + g.alloc[t] > capacity) return false;
        if (t == target) break;
      }
    }
    const int64_t held =
        nodes_[target].held + g.alloc[target] - g.free[target] - net;
    return held + g.alloc[task] <= capacity;
  }
  if (net > 0) {
    for (int32_t t = nodes_[task].previous;; t = nodes_[t].previous) {
      if (nodes_[t].held + net + g.alloc[t] > capacity) return false;
      if (t == target) break;
    }
  }
  return nodes_[target].held + g.alloc[task] <= capacity;
}

int64_t TabuSearch::Estimate(int32_t task, int32_t target, bool forward) {
  const Node& a = nodes_[task];
  const Node& b = nodes_[target];
  // The tasks that `task` passes, in the order in which they run, each with its
  // end after the move.
  const int32_t begin = forward ? a.next : target;
  const int32_t end = forward ? b.next : task;
  chain_.clear();
  int64_t at = forward ? nodes_[a.previous].end : nodes_[b.previous].end;
  int64_t task_end = 0;
  if (!forward) {
    task_end = std::max(at, a.job_head) + a.duration;
    at = task_end;
  }
  for (int32_t t = begin; t != end; t = nodes_[t].next) {
    const Node& n = nodes_[t];
    at = std::max(at, n.job_head) + n.duration;
    chain_.push_back({.task = t, .end = at});
  }
  int64_t after = forward ? nodes_[b.next].left : nodes_[a.next].left;
  int64_t result = 0;
  if (forward) {
    task_end = std::max(at, a.job_head) + a.duration;
    after = std::max(after, a.job_tail);
    result = task_end + after;
    after += a.duration;
  }
  for (size_t i = chain_.size(); i-- > 0;) {
    const Node& n = nodes_[chain_[i].task];
    after = std::max(after, n.job_tail);
    result = std::max(result, chain_[i].end + after);
    after += n.duration;
  }
  if (!forward)
    result = std::max(result, task_end + std::max(after, a.job_tail));
  return result;
}

bool TabuSearch::IsTabu(int32_t task, int32_t target, bool forward) const {
  return tabu_until_[forward ? Slot(target, task) : Slot(task, target)] >
         iteration_;
}

void TabuSearch::Consider(int32_t task, int32_t target, bool forward,
                          Random& random) {
  if (!KeepsOrder(task, target, forward)) return;
  if (!FitsMemory(task, target, forward)) return;
  Move move{.task = task, .target = target, .forward = forward};
  move.estimate = Estimate(task, target, forward);
  // A tabu move is allowed if it promises a new best.
  if (move.estimate >= best_ && IsTabu(task, target, forward)) {
    if (best_tabu_.task < 0 || random.Below(4) == 0) best_tabu_ = move;
    return;
  }
  if (best_move_.task < 0 || move.estimate < best_move_.estimate) {
    best_move_ = move;
    ties_ = 1;
  } else if (move.estimate == best_move_.estimate &&
             random.Below(++ties_) == 0) {
    best_move_ = move;
  }
}

void TabuSearch::ConsiderBlock(size_t begin, size_t end, Random& random) {
  const auto size = static_cast<int32_t>(end - begin);
  if (size < 2) return;
  // At the step's ends only one side of a block counts.
  const bool first = begin == 0;
  const bool last = end == path_.size();
  const int32_t reach = std::min(size, kReach);
  if (!last) {
    const int32_t back = path_[end - 1];
    for (int32_t k = 1; k < reach; ++k) {
      const int32_t t = path_[end - 1 - static_cast<size_t>(k)];
      Consider(t, back, /*forward=*/true, random);
      if (k > 1) Consider(back, t, /*forward=*/false, random);
    }
  }
  if (!first) {
    const int32_t front = path_[begin];
    for (int32_t k = 1; k < reach; ++k) {
      const int32_t t = path_[begin + static_cast<size_t>(k)];
      Consider(t, front, /*forward=*/false, random);
      if (k > 1) Consider(front, t, /*forward=*/true, random);
    }
  }
}

bool TabuSearch::Apply(const Move& move, Random& random) {
  const FlatGraph& g = *graph_;
  const int32_t a = move.task;
  const int32_t b = move.target;
  const auto begin =
      static_cast<size_t>(std::min(nodes_[a].position, nodes_[b].position));
  const auto end =
      static_cast<size_t>(std::max(nodes_[a].position, nodes_[b].position)) + 1;
  const auto from = static_cast<int32_t>(begin);
  const auto until = static_cast<int32_t>(end);
  // Rearranges the sequence: a forward move puts `a` and its dependents behind
  // the rest; a backward move puts `a` and what it depends on ahead.
  for (size_t i = begin; i < end; ++i) marked_[sequence_[i]] = 0;
  marked_[a] = 1;
  if (move.forward) {
    for (size_t i = begin; i < end; ++i) {
      const int32_t t = sequence_[i];
      if (marked_[t] == 0) continue;
      for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
        if (nodes_[g.succ[e]].position < until) marked_[g.succ[e]] = 1;
      }
      // The order on a rank counts as well, except for that of the moved task
      // itself.
      const int32_t n = nodes_[t].next;
      if (t != a && IsTask(n) && nodes_[n].position < until) marked_[n] = 1;
    }
  } else {
    for (size_t i = end; i-- > begin;) {
      const int32_t t = sequence_[i];
      if (marked_[t] == 0) continue;
      for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
        if (nodes_[g.pred[e]].position >= from) marked_[g.pred[e]] = 1;
      }
      const int32_t p = nodes_[t].previous;
      if (t != a && IsTask(p) && nodes_[p].position >= from) marked_[p] = 1;
    }
  }
  if (marked_[b] != 0) return false;
  moved_.clear();
  const uint8_t ahead = move.forward ? 0 : 1;
  size_t out = begin;
  for (size_t i = begin; i < end; ++i) {
    const int32_t t = sequence_[i];
    if (marked_[t] == ahead) {
      sequence_[out++] = t;
    } else {
      moved_.push_back(t);
    }
  }
  // After a forward move, b is the last unmarked task and a the first behind
  // it.
  for (const int32_t t : moved_) sequence_[out++] = t;
  for (size_t i = begin; i < end; ++i) {
    nodes_[sequence_[i]].position = static_cast<int32_t>(i);
  }
  // Makes the reversed pairs tabu, and updates the rank's order.
  const uint64_t tenure =
      iteration_ +
      static_cast<uint64_t>(tenure_ + random.Below(tenure_ / 2 + 1));
  Node& node = nodes_[a];
  const int32_t before = node.previous;
  const int32_t after = node.next;
  const auto link = [&](int32_t first, int32_t second) {
    if (IsTask(first)) nodes_[first].next = second;
    if (IsTask(second)) {
      nodes_[second].previous = first;
    } else {
      last_[node.rank] = first;
    }
  };
  if (move.forward) {
    for (int32_t t = after;; t = nodes_[t].next) {
      tabu_until_[Slot(a, t)] = tenure;
      if (t == b) break;
    }
    const int32_t behind = nodes_[b].next;
    link(before, after);
    link(a, behind);
    link(b, a);
  } else {
    for (int32_t t = before;; t = nodes_[t].previous) {
      tabu_until_[Slot(t, a)] = tenure;
      if (t == b) break;
    }
    const int32_t ahead_of_b = nodes_[b].previous;
    link(before, after);
    link(a, b);
    link(ahead_of_b, a);
  }
  // Updates the bytes held, from the first task whose place changed.
  for (int32_t t = move.forward ? after : a;;) {
    Node& n = nodes_[t];
    n.held = IsTask(n.previous) ? nodes_[n.previous].held +
                                      g.alloc[n.previous] - g.free[n.previous]
                                : 0;
    if (t == (move.forward ? a : before)) break;
    t = n.next;
  }
  SweepHeads(begin);
  SweepTails(end);
  CountTime();
  return true;
}

int64_t TabuSearch::Run(int64_t iterations, int64_t target, Random& random) {
  int64_t done = 0;
  while (done < iterations && best_ > target) {
    FindPath(random);
    best_move_ = {};
    best_tabu_ = {};
    size_t begin = 0;
    for (size_t i = 1; i <= path_.size(); ++i) {
      const bool goes_on = i < path_.size() &&
                           nodes_[path_[i]].previous == path_[i - 1] &&
                           nodes_[path_[i - 1]].end ==
                               nodes_[path_[i]].end - nodes_[path_[i]].duration;
      if (goes_on) continue;
      ConsiderBlock(begin, i, random);
      begin = i;
    }
    const Move& move = best_move_.task >= 0 ? best_move_ : best_tabu_;
    ++iteration_;
    ++done;
    ++stalled_;
    if (move.task < 0 || !Apply(move, random)) {
      if (stalled_ % 16 == 15) break;
      continue;
    }
    if (current_ < best_) {
      best_ = current_;
      best_sequence_ = sequence_;
      stalled_ = 0;
    }
  }
  return done;
}

}  // namespace pipeloom::planner
