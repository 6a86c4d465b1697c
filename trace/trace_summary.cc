#include "trace/trace_summary.h"

#include <algorithm>

namespace pipeloom::trace {

IdVector<TaskId, const Span*> TaskSpans(const StageGraph& graph,
                                        const StepTrace& trace) {
  IdVector<TaskId, const Span*> spans(graph.num_tasks(), nullptr);
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTask && spans.Contains(span.task)) {
      spans[span.task] = &span;
    }
  }
  return spans;
}

bool HasMemory(const StepTrace& trace) {
  return std::any_of(
      trace.memory.begin(), trace.memory.end(),
      [](const MemoryStep& step) { return step.delta > Bytes(0); });
}

TraceSummary Summarize(const StageGraph& graph, const StepTrace& trace) {
  TraceSummary summary;
  summary.ranks.resize(graph.num_ranks());
  summary.modules.resize(static_cast<int32_t>(graph.module_names().size()));
  IdVector<RankId, SimTime> last_end(graph.num_ranks(), kStepStart);
  Duration busy{};
  for (const Span& span : trace.spans) {
    if (!summary.ranks.Contains(span.rank)) continue;
    RankSummary& rank = summary.ranks[span.rank];
    const Duration length = span.end - span.start;
    if (span.kind == SpanKind::kEpilogue) rank.epilogue += length;
    if (span.kind != SpanKind::kTask) continue;
    const Task& task = graph.task(span.task);
    const auto pass = static_cast<size_t>(task.pass);
    const Duration gap = span.start - last_end[span.rank];
    (rank.num_tasks == 0 ? rank.warm_up : rank.stalls) += gap;
    rank.pass[pass] += length;
    summary.modules[task.module].pass[pass] += length;
    last_end[span.rank] = span.end;
    ++rank.num_tasks;
    busy += length;
  }
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(trace);
  for (const RankId r : graph.rank_ids()) {
    RankSummary& rank = summary.ranks[r];
    if (peaks.Contains(r)) rank.peak = peaks[r];
    rank.drain = std::max(kZero, trace.finish - last_end[r] - rank.epilogue);
  }
  if (graph.num_ranks() > 0 && trace.step_time() > kZero) {
    const double whole = graph.num_ranks() * ToSeconds(trace.step_time());
    Duration epilogues{};
    for (const RankSummary& rank : summary.ranks) epilogues += rank.epilogue;
    summary.epilogue_ratio = ToSeconds(epilogues) / whole;
    summary.bubble_ratio = 1 - ToSeconds(busy) / whole - summary.epilogue_ratio;
  }
  return summary;
}

CriticalPath FindCriticalPath(const StageGraph& graph, const StepTrace& trace) {
  CriticalPath path;
  path.compute.resize(static_cast<int32_t>(graph.module_names().size()));
  const IdVector<TaskId, const Span*> spans = TaskSpans(graph, trace);
  IdVector<TaskId, TaskId> previous(graph.num_tasks());
  IdVector<RankId, TaskId> last(graph.num_ranks());
  IdVector<RankId, Duration> epilogue(graph.num_ranks());
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kEpilogue) {
      epilogue[span.rank] += span.end - span.start;
    }
    if (span.kind != SpanKind::kTask) continue;
    previous[span.task] = last[span.rank];
    last[span.rank] = span.task;
  }
  TaskId at;
  for (const RankId r : graph.rank_ids()) {
    if (last[r].is_none()) continue;
    if (at.is_none() || spans[last[r]]->end + epilogue[r] >
                            spans[at]->end + epilogue[graph.task(at).rank]) {
      at = last[r];
    }
  }
  if (at.is_none()) return path;
  path.epilogue = epilogue[graph.task(at).rank];
  path.other = trace.finish - spans[at]->end - path.epilogue;
  // A task starts after the one that it waited for, so each iteration goes back
  // in time or, for empty tasks, to a smaller position. The count guards
  // against measured traces whose clocks disagree.
  for (int32_t left = graph.num_tasks(); left > 0; --left) {
    path.tasks.push_back(at);
    const Task& task = graph.task(at);
    const SimTime start = spans[at]->start;
    path.compute[task.module].pass[static_cast<size_t>(task.pass)] +=
        spans[at]->end - start;
    const TaskId before = previous[at];
    TaskId producer;
    SimTime arrival;
    for (const EdgeId e : graph.incoming(at)) {
      const Dependency& edge = graph.edge(e);
      if (spans[edge.from] == nullptr) continue;
      const SimTime ready = spans[edge.from]->end + edge.delay;
      if (producer.is_none() || ready > arrival) {
        producer = edge.from;
        arrival = ready;
      }
    }
    const bool after_rank =
        !before.is_none() &&
        (producer.is_none() || spans[before]->end >= std::min(arrival, start));
    if (after_rank) {
      path.other += start - spans[before]->end;
      at = before;
    } else if (!producer.is_none()) {
      path.transfer += start - spans[producer]->end;
      if (graph.task(producer).rank != task.rank) ++path.rank_changes;
      at = producer;
    } else {
      path.other += start - kStepStart;
      break;
    }
  }
  std::reverse(path.tasks.begin(), path.tasks.end());
  return path;
}

}  // namespace pipeloom::trace
