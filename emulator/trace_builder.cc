#include "emulator/trace_builder.h"

#include <algorithm>
#include <iterator>

namespace pipeloom::emulator {
namespace {

template <typename T, typename Time>
void SortByTime(std::vector<T>* items, Time time) {
  const auto earlier = [time](const T& a, const T& b) {
    return time(a) < time(b);
  };
  if (!std::is_sorted(items->begin(), items->end(), earlier)) {
    std::stable_sort(items->begin(), items->end(), earlier);
  }
}

}  // namespace

TraceBuilder::TraceBuilder(const ExecutionPlan& plan, bool full)
    : full_(full), ranks_(plan.graph.num_ranks()) {
  for (const RankId rank : plan.graph.rank_ids()) {
    RankTrace& trace = ranks_[rank];
    const size_t instructions = plan.programs[rank].size();
    trace.program.reserve(instructions / 2 + 2);
    if (!full) continue;
    trace.transfers.reserve(instructions / 5 + 1);
    trace.memory.reserve(instructions + 4);
    const RankMemory& held = plan.graph.rank(rank).memory;
    AddMemory(rank, kStepStart, MemoryItem::kWeights, held.weights);
    AddMemory(rank, kStepStart, MemoryItem::kGradients, held.gradients);
    AddMemory(rank, kStepStart, MemoryItem::kOptimizer, held.optimizer);
    AddMemory(rank, kStepStart, MemoryItem::kOverhead, held.overhead);
  }
}

void TraceBuilder::AddWait(RankId rank, EdgeId edge, SimTime start,
                           SimTime end) {
  if (!full_ || end <= start) return;
  ranks_[rank].program.push_back({.rank = rank,
                                  .kind = SpanKind::kWait,
                                  .edge = edge,
                                  .start = start,
                                  .end = end});
}

void TraceBuilder::AddEpilogue(RankId rank, SimTime start, SimTime end) {
  if (!full_) return;
  ranks_[rank].program.push_back(
      {.rank = rank, .kind = SpanKind::kEpilogue, .start = start, .end = end});
}

void TraceBuilder::AddTransfer(RankId sender, EdgeId edge, SimTime start,
                               SimTime end) {
  if (!full_) return;
  ranks_[sender].transfers.push_back({.rank = sender,
                                      .stream = Stream::kSend,
                                      .kind = SpanKind::kTransfer,
                                      .edge = edge,
                                      .start = start,
                                      .end = end});
}

void TraceBuilder::AddMemory(RankId rank, SimTime at, MemoryItem item,
                             Bytes delta) {
  if (!full_ || delta == Bytes(0)) return;
  ranks_[rank].memory.push_back(
      {.rank = rank, .at = at, .item = item, .delta = delta});
}

StepTrace TraceBuilder::Build(SimTime finish) {
  StepTrace trace;
  trace.num_ranks = ranks_.size();
  trace.finish = finish;
  size_t spans = 0;
  size_t steps = 0;
  for (const RankTrace& rank : ranks_) {
    spans += rank.program.size() + rank.transfers.size();
    steps += rank.memory.size();
  }
  trace.spans.reserve(spans);
  trace.memory.reserve(steps);
  const auto start = [](const Span& span) { return span.start; };
  for (RankTrace& rank : ranks_) {
    SortByTime(&rank.transfers, start);
    SortByTime(&rank.memory, [](const MemoryStep& step) { return step.at; });
    std::merge(
        rank.program.begin(), rank.program.end(), rank.transfers.begin(),
        rank.transfers.end(), std::back_inserter(trace.spans),
        [&](const Span& a, const Span& b) { return start(a) < start(b); });
    trace.memory.insert(trace.memory.end(), rank.memory.begin(),
                        rank.memory.end());
    rank = {};
  }
  return trace;
}

}  // namespace pipeloom::emulator
