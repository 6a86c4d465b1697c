#include "ir/plan/step_trace.h"

#include <algorithm>
#include <cmath>

namespace pipeloom {

const char* MemoryItemName(MemoryItem item) {
  switch (item) {
    case MemoryItem::kWeights:
      return "weights";
    case MemoryItem::kGradients:
      return "gradients";
    case MemoryItem::kOptimizer:
      return "optimizer";
    case MemoryItem::kOverhead:
      return "overhead";
    case MemoryItem::kActivations:
      return "activations";
    case MemoryItem::kReceived:
      return "received";
    case MemoryItem::kSent:
      return "sent";
  }
  return "?";
}

IdVector<RankId, MemoryPeak> MemoryPeaks(const StepTrace& trace) {
  IdVector<RankId, MemoryPeak> peaks(trace.num_ranks);
  IdVector<RankId, MemoryPeak> now(trace.num_ranks);
  for (const MemoryStep& step : trace.memory) {
    MemoryPeak& current = now[step.rank];
    current.total += step.delta;
    current.items[static_cast<int>(step.item)] += step.delta;
    current.at = step.at;
    if (current.total > peaks[step.rank].total) peaks[step.rank] = current;
  }
  return peaks;
}

IdVector<RankId, std::vector<TaskId>> TaskOrders(const StepTrace& trace) {
  IdVector<RankId, std::vector<TaskId>> orders(trace.num_ranks);
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTask) orders[span.rank].push_back(span.task);
  }
  return orders;
}

TraceComparison CompareTraces(const StepTrace& predicted,
                              const StepTrace& measured) {
  TraceComparison result;
  result.predicted_step_time = predicted.step_time();
  result.measured_step_time = measured.step_time();
  if (predicted.step_time() > kZero) {
    result.step_time_error =
        ToSeconds(measured.step_time()) / ToSeconds(predicted.step_time()) - 1;
  }
  result.same_order = predicted.num_ranks == measured.num_ranks &&
                      TaskOrders(predicted) == TaskOrders(measured);
  int32_t num_tasks = 0;
  for (const Span& span : predicted.spans) {
    if (span.kind == SpanKind::kTask) {
      num_tasks = std::max(num_tasks, span.task.value() + 1);
    }
  }
  IdVector<TaskId, Duration> expected(num_tasks, kZero);
  for (const Span& span : predicted.spans) {
    if (span.kind == SpanKind::kTask)
      expected[span.task] = span.end - span.start;
  }
  double sum = 0;
  int32_t count = 0;
  for (const Span& span : measured.spans) {
    if (span.kind != SpanKind::kTask || !expected.Contains(span.task) ||
        expected[span.task] <= kZero) {
      continue;
    }
    sum += std::abs(
        ToSeconds(span.end - span.start) / ToSeconds(expected[span.task]) - 1);
    ++count;
  }
  if (count > 0) result.mean_task_time_error = sum / count;
  return result;
}

}  // namespace pipeloom
