#include "planner/construct/forward_backward.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace pipeloom::planner {
namespace {

// A schedule is given up if it takes more than this many times as long as the
// one to beat, after its first round and after each later one. Measured on 139
// problems of `pipeloom bench --random train:600`: of 2,473 schedules, half
// were this far behind after the first round, and none of those caught up.
constexpr double kBehindFirst = 1.04;
constexpr double kBehind = 1.02;

// Returns the pass that a task has in reverse. There a forward gives back the
// bytes that its microbatch holds, so it is to its rank what a weight gradient
// is in the graph.
Pass Mirror(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return Pass::kWeightGrad;
    case Pass::kWeightGrad:
      return Pass::kForward;
    default:
      return pass;
  }
}

}  // namespace

FlatGraph Reversed(const FlatGraph& graph) {
  FlatGraph reversed = graph;
  std::swap(reversed.alloc, reversed.free);
  std::swap(reversed.pred_offset, reversed.succ_offset);
  std::swap(reversed.pred, reversed.succ);
  std::swap(reversed.pred_delay, reversed.succ_delay);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    reversed.pass[t] = Mirror(graph.pass[t]);
    int64_t& capacity = reversed.capacity[graph.rank[t]];
    if (capacity != kNoLimit) capacity -= graph.alloc[t] - graph.free[t];
  }
  // Epilogues come after the last task of the graph, so before the first of
  // this one: no list schedule needs them.
  std::fill(reversed.epilogue.begin(), reversed.epilogue.end(), 0);
  return reversed;
}

ForwardBackward::ForwardBackward(const FlatGraph& graph)
    : graph_(&graph),
      reversed_(Reversed(graph)),
      forward_(graph),
      backward_(reversed_),
      retimer_(graph),
      key_(static_cast<size_t>(graph.num_tasks)) {}

void ForwardBackward::Offer(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= time_) return;
  time_ = time;
  sequence_.assign(sequence.begin(), sequence.end());
}

int64_t ForwardBackward::Run(const SweepStyle& style,
                             ListScheduler& scheduler) const {
  return scheduler.Run({.order = order_,
                        .prefer = Prefer::kPriority,
                        .patience = style.patience,
                        .keeps_takers = style.keeps_takers});
}

int64_t ForwardBackward::Improve(absl::Span<const int32_t> sequence,
                                 int32_t rounds, const SweepStyle& style,
                                 int64_t to_beat) {
  time_ = retimer_.Retime(sequence);
  sequence_.assign(sequence.begin(), sequence.end());
  evaluations_ = 0;
  std::transform(retimer_.end().begin(), retimer_.end().end(), key_.begin(),
                 std::negate<>());
  for (int32_t round = 0; round < rounds; ++round) {
    const int64_t before = time_;
    // To the right: the task that ends last goes first in reverse.
    sorter_.Sort(key_, &order_);
    ++evaluations_;
    if (Run(style, backward_) >= kNoLimit) break;
    mirrored_.assign(backward_.sequence().rbegin(),
                     backward_.sequence().rend());
    Offer(retimer_.Retime(mirrored_), mirrored_);
    // To the left: the task that starts first, that is, ends last in reverse,
    // goes first.
    for (int32_t t = 0; t < graph_->num_tasks; ++t) {
      key_[t] = -backward_.start()[t] - graph_->duration[t];
    }
    sorter_.Sort(key_, &order_);
    ++evaluations_;
    const int64_t time = Run(style, forward_);
    if (time >= kNoLimit) break;
    Offer(time, forward_.sequence());
    const double behind = round == 0 ? kBehindFirst : kBehind;
    if (time_ >= before ||
        static_cast<double>(time_) > behind * static_cast<double>(to_beat)) {
      break;
    }
    for (int32_t t = 0; t < graph_->num_tasks; ++t) {
      key_[t] = -forward_.start()[t] - graph_->duration[t];
    }
  }
  return time_;
}

}  // namespace pipeloom::planner
