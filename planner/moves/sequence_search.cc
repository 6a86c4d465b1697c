#include "planner/moves/sequence_search.h"

#include <algorithm>
#include <cmath>

namespace pipeloom::planner {
namespace {

// Longest range of a move: longer moves cost more and seldom help.
constexpr size_t kMaxRange = 600;
constexpr int64_t kAcceptsBetweenSorts = 8;

}  // namespace

SequenceSearch::SequenceSearch(const FlatGraph& graph)
    : graph_(&graph),
      retimer_(graph),
      position_(static_cast<size_t>(graph.num_tasks)),
      held_before_(static_cast<size_t>(graph.num_tasks)),
      previous_(static_cast<size_t>(graph.num_tasks)),
      next_(static_cast<size_t>(graph.num_tasks)),
      last_(static_cast<size_t>(graph.num_ranks)),
      marked_(static_cast<size_t>(graph.num_tasks), 0),
      held_(static_cast<size_t>(graph.num_ranks)),
      held_stamp_(static_cast<size_t>(graph.num_ranks), 0) {}

void SequenceSearch::Start(absl::Span<const int32_t> sequence) {
  sequence_.assign(sequence.begin(), sequence.end());
  current_ = retimer_.Retime(sequence_);
  SortByStart();
  FindMoves();
  best_ = current_;
  best_sequence_ = sequence_;
}

void SequenceSearch::Restart() {
  const std::vector<int32_t> best = best_sequence_;
  Start(best);
}

void SequenceSearch::SortByStart() {
  const FlatGraph& g = *graph_;
  // The sequence is nearly sorted already, so insertion is fast. It is stable:
  // equal starts keep their order, so producers stay ahead of consumers.
  for (size_t i = 1; i < sequence_.size(); ++i) {
    const int32_t t = sequence_[i];
    const int64_t start = retimer_.start(t);
    size_t j = i;
    while (j > 0 && retimer_.start(sequence_[j - 1]) > start) {
      sequence_[j] = sequence_[j - 1];
      --j;
    }
    sequence_[j] = t;
  }
  std::fill(held_.begin(), held_.end(), 0);
  for (size_t i = 0; i < sequence_.size(); ++i) {
    const int32_t t = sequence_[i];
    position_[t] = static_cast<int32_t>(i);
    held_before_[t] = held_[g.rank[t]];
    held_[g.rank[t]] += g.alloc[t] - g.free[t];
  }
}

void SequenceSearch::FindMoves() {
  const FlatGraph& g = *graph_;
  std::fill(last_.begin(), last_.end(), -1);
  for (const int32_t t : sequence_) {
    const int32_t r = g.rank[t];
    previous_[t] = last_[r];
    if (last_[r] >= 0) next_[last_[r]] = t;
    next_[t] = -1;
    last_[r] = t;
  }
  moves_.clear();
  const auto end = retimer_.end();
  int32_t t = -1;
  int64_t latest = -1;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    if (last_[r] >= 0 && end[last_[r]] + g.epilogue[r] > latest) {
      latest = end[last_[r]] + g.epilogue[r];
      t = last_[r];
    }
  }
  while (t >= 0) {
    const int64_t start = retimer_.start(t);
    // Finds whether its rank or a producer holds t back; takes one at random if
    // both do.
    int32_t producer = -1;
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      if (end[g.pred[e]] + g.pred_delay[e] == start) producer = g.pred[e];
    }
    const int32_t before = previous_[t];
    const bool waits_for_rank = before >= 0 && end[before] == start;
    if (waits_for_rank && producer != before) {
      moves_.push_back({.first = before, .second = t});
    }
    if (waits_for_rank &&
        (producer < 0 || producer == before || (random_.Next() & 1) != 0)) {
      t = before;
    } else {
      t = producer;
    }
  }
}

bool SequenceSearch::FitsMemory(size_t begin, size_t end) {
  const FlatGraph& g = *graph_;
  ++stamp_;
  // The bytes that each rank held when the range began, from its first task
  // there in the old order.
  for (const int32_t t : undo_) {
    const int32_t r = g.rank[t];
    if (held_stamp_[r] != stamp_) {
      held_stamp_[r] = stamp_;
      held_[r] = held_before_[t];
    }
  }
  new_held_.clear();
  for (size_t i = begin; i < end; ++i) {
    const int32_t t = sequence_[i];
    const int32_t r = g.rank[t];
    new_held_.push_back(held_[r]);
    if (held_[r] + g.alloc[t] > g.capacity[r]) return false;
    held_[r] += g.alloc[t] - g.free[t];
  }
  return true;
}

bool SequenceSearch::Arrange(int32_t first, int32_t second, bool pull) {
  const FlatGraph& g = *graph_;
  begin_ = static_cast<size_t>(position_[first]);
  end_ = static_cast<size_t>(position_[second]) + 1;
  if (end_ <= begin_ || end_ - begin_ > kMaxRange) return false;
  const auto from = static_cast<int32_t>(begin_);
  const auto until = static_cast<int32_t>(end_);
  for (size_t i = begin_; i < end_; ++i) marked_[sequence_[i]] = 0;
  if (pull) {
    marked_[second] = 1;
    for (size_t i = end_; i-- > begin_;) {
      const int32_t t = sequence_[i];
      if (marked_[t] == 0) continue;
      for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
        if (position_[g.pred[e]] >= from) marked_[g.pred[e]] = 1;
      }
    }
    if (marked_[first] != 0) return false;
  } else {
    marked_[first] = 1;
    for (size_t i = begin_; i < end_; ++i) {
      const int32_t t = sequence_[i];
      if (marked_[t] == 0) continue;
      for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
        if (position_[g.succ[e]] < until) marked_[g.succ[e]] = 1;
      }
    }
    if (marked_[second] != 0) return false;
  }
  undo_.assign(sequence_.begin() + static_cast<int64_t>(begin_),
               sequence_.begin() + static_cast<int64_t>(end_));
  const uint8_t ahead = pull ? 1 : 0;
  size_t out = begin_;
  for (const int32_t t : undo_) {
    if (marked_[t] == ahead) sequence_[out++] = t;
  }
  for (const int32_t t : undo_) {
    if (marked_[t] != ahead) sequence_[out++] = t;
  }
  if (FitsMemory(begin_, end_)) return true;
  std::copy(undo_.begin(), undo_.end(),
            sequence_.begin() + static_cast<int64_t>(begin_));
  return false;
}

void SequenceSearch::Accept(int64_t time) {
  current_ = time;
  if (++accepted_ % kAcceptsBetweenSorts == 0) {
    SortByStart();
  } else {
    for (size_t i = begin_; i < end_; ++i) {
      position_[sequence_[i]] = static_cast<int32_t>(i);
      held_before_[sequence_[i]] = new_held_[i - begin_];
    }
  }
  FindMoves();
  if (time < best_) {
    best_ = time;
    best_sequence_ = sequence_;
  }
}

int64_t SequenceSearch::Run(int64_t moves, double temperature, int64_t target,
                            Random& random) {
  int64_t evaluations = 0;
  random_ = random.Fork();
  for (int64_t i = 0; i < moves && best_ > target; ++i) {
    if (moves_.empty()) break;
    Move move = moves_[random.Below(static_cast<int64_t>(moves_.size()))];
    const int64_t kind = random.Below(8);
    if (kind < 2) {
      for (int64_t k = random.Between(1, 6); k > 0; --k) {
        if (previous_[move.first] >= 0) move.first = previous_[move.first];
      }
    } else if (kind < 4) {
      for (int64_t k = random.Between(1, 6); k > 0; --k) {
        if (next_[move.second] >= 0) move.second = next_[move.second];
      }
    }
    if (!Arrange(move.first, move.second, (random.Next() & 1) != 0)) continue;
    const int64_t time = retimer_.Retime(sequence_);
    ++evaluations;
    const auto worse = static_cast<double>(time - current_);
    if (worse <= 0 || (temperature > 0 &&
                       worse < -temperature * std::log(1 - random.Unit()))) {
      Accept(time);
    } else {
      std::copy(undo_.begin(), undo_.end(),
                sequence_.begin() + static_cast<int64_t>(begin_));
    }
  }
  return evaluations;
}

}  // namespace pipeloom::planner
