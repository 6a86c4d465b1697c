#include "planner/moves/relabel_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace pipeloom::planner {
namespace {

// Most exchanges are between places that are at most this far apart.
constexpr int64_t kReach = 4;
constexpr int kKickTries = 8;

}  // namespace

RelabelSearch::RelabelSearch(const FlatGraph& graph, const OrderUnits& units)
    : graph_(&graph),
      retimer_(graph),
      tasks_(units.period.size()),
      microbatch_(static_cast<size_t>(graph.num_tasks)),
      index_(static_cast<size_t>(graph.num_tasks)),
      held_(static_cast<size_t>(graph.num_ranks)) {
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    const int32_t m = units.microbatch[units.unit[t]];
    microbatch_[t] = m;
    index_[t] = static_cast<int32_t>(tasks_[m].size());
    tasks_[m].push_back(t);
  }
  FindStructures();
}

// Returns whether two microbatches have the same ranks, passes and producers,
// task by task.
bool RelabelSearch::Alike(int32_t a, int32_t b) const {
  const FlatGraph& g = *graph_;
  if (tasks_[a].size() != tasks_[b].size()) return false;
  for (size_t i = 0; i < tasks_[a].size(); ++i) {
    const int32_t x = tasks_[a][i];
    const int32_t y = tasks_[b][i];
    if (g.rank[x] != g.rank[y] || g.pass[x] != g.pass[y]) return false;
    const int32_t from_x = g.pred_offset[x];
    const int32_t from_y = g.pred_offset[y];
    const int32_t n = g.pred_offset[x + 1] - from_x;
    if (n != g.pred_offset[y + 1] - from_y) return false;
    for (int32_t e = 0; e < n; ++e) {
      const int32_t p = g.pred[from_x + e];
      const int32_t q = g.pred[from_y + e];
      if (microbatch_[p] != a || microbatch_[q] != b ||
          index_[p] != index_[q]) {
        return false;
      }
    }
  }
  return true;
}

bool RelabelSearch::SameCost(int32_t a, int32_t b) const {
  return std::equal(tasks_[a].begin(), tasks_[a].end(), tasks_[b].begin(),
                    [&](int32_t x, int32_t y) {
                      return graph_->duration[x] == graph_->duration[y];
                    });
}

bool RelabelSearch::SameMemory(int32_t a, int32_t b) const {
  return std::equal(tasks_[a].begin(), tasks_[a].end(), tasks_[b].begin(),
                    [&](int32_t x, int32_t y) {
                      return graph_->alloc[x] == graph_->alloc[y] &&
                             graph_->free[x] == graph_->free[y];
                    });
}

void RelabelSearch::FindStructures() {
  std::vector<int32_t> examples;
  structure_.assign(tasks_.size(), -1);
  for (int32_t m = 0; m < static_cast<int32_t>(tasks_.size()); ++m) {
    if (tasks_[m].empty()) continue;
    for (size_t s = 0; s < examples.size() && structure_[m] < 0; ++s) {
      if (!Alike(m, examples[s])) continue;
      structure_[m] = static_cast<int32_t>(s);
      can_move_ |= !SameCost(m, examples[s]);
      checks_memory_ |= !SameMemory(m, examples[s]);
    }
    if (structure_[m] < 0) {
      structure_[m] = static_cast<int32_t>(examples.size());
      examples.push_back(m);
    }
  }
  const std::vector<int64_t>& capacity = graph_->capacity;
  checks_memory_ &= std::any_of(capacity.begin(), capacity.end(),
                                [](int64_t c) { return c < kNoLimit; });
}

void RelabelSearch::Start(absl::Span<const int32_t> sequence) {
  sequence_.assign(sequence.begin(), sequence.end());
  holder_.clear();
  step_index_.clear();
  places_.clear();
  label_.assign(tasks_.size(), -1);
  for (const int32_t t : sequence) {
    const int32_t m = microbatch_[t];
    holder_.push_back(m);
    step_index_.push_back(index_[t]);
    if (label_[m] < 0) places_.push_back(m);
    label_[m] = m;
  }
  current_ = retimer_.Retime(sequence_);
  best_ = current_;
  best_sequence_ = sequence_;
}

bool RelabelSearch::Propose(Random& random) {
  const auto n = static_cast<int64_t>(places_.size());
  if (n < 2) return false;
  const int64_t from = random.Below(n);
  const int64_t reach = random.Below(3) == 0 ? n : kReach;
  const int64_t to =
      std::clamp<int64_t>(from + random.Between(-reach, reach), 0, n - 1);
  if (from == to) return false;
  int32_t a = places_[from];
  const int32_t structure = structure_[label_[a]];
  if (structure_[label_[places_[to]]] != structure) return false;
  if (random.Below(2) == 0) {
    std::swap(label_[a], label_[places_[to]]);
    return true;
  }
  // The microbatch goes there; those of its structure in between move up.
  const int64_t step = to > from ? 1 : -1;
  for (int64_t k = from; k != to;) {
    k += step;
    const int32_t b = places_[k];
    if (structure_[label_[b]] != structure) continue;
    std::swap(label_[a], label_[b]);
    a = b;
  }
  return true;
}

int64_t RelabelSearch::Evaluate() {
  for (size_t i = 0; i < sequence_.size(); ++i) {
    sequence_[i] = tasks_[label_[holder_[i]]][step_index_[i]];
  }
  if (checks_memory_) {
    const FlatGraph& g = *graph_;
    std::fill(held_.begin(), held_.end(), 0);
    for (const int32_t t : sequence_) {
      int64_t& held = held_[g.rank[t]];
      held += g.alloc[t];
      if (held > g.capacity[g.rank[t]]) return kNoLimit;
      held -= g.free[t];
    }
  }
  return retimer_.Retime(sequence_);
}

int64_t RelabelSearch::Kick(Random& random) {
  saved_ = label_;
  for (int i = 0; i < kKickTries; ++i) {
    if (!Propose(random)) continue;
    const int64_t time = Evaluate();
    if (time < kNoLimit) return current_ = time;
    label_ = saved_;
  }
  return current_ = Evaluate();
}

int64_t RelabelSearch::Run(int64_t moves, double temperature, int64_t target,
                           Random& random) {
  int64_t evaluations = 0;
  for (int64_t i = 0; i < moves && best_ > target; ++i) {
    saved_ = label_;
    if (!Propose(random)) continue;
    const int64_t time = Evaluate();
    ++evaluations;
    const auto worse = static_cast<double>(time - current_);
    if (time >= kNoLimit ||
        (worse > 0 && (temperature <= 0 ||
                       worse >= -temperature * std::log(1 - random.Unit())))) {
      label_ = saved_;
      continue;
    }
    current_ = time;
    if (time < best_) {
      best_ = time;
      best_sequence_ = sequence_;
    }
  }
  return evaluations;
}

}  // namespace pipeloom::planner
