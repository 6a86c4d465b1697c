// ValidateSchedule: the independent check of ir/plan/schedule.h. It reads only
// the graph and the start times, and shares no code with what makes schedules.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "ir/plan/schedule.h"

namespace pipeloom {
namespace {

absl::Status Violation(const std::string& what) {
  return absl::FailedPreconditionError("schedule: " + what);
}

}  // namespace

absl::Status ValidateSchedule(const StageGraph& graph,
                              const Schedule& schedule) {
  if (schedule.order.size() != graph.num_ranks() ||
      schedule.peak.size() != graph.num_ranks() ||
      schedule.start.size() != graph.num_tasks()) {
    return Violation(absl::StrFormat(
        "it is for %d ranks and %d tasks; the graph has %d and %d",
        schedule.order.size(), schedule.start.size(), graph.num_ranks(),
        graph.num_tasks()));
  }
  const auto end = [&](TaskId t) {
    return schedule.start[t] + graph.task(t).duration;
  };
  IdVector<TaskId, int32_t> count(graph.num_tasks(), 0);
  SimTime tasks_finish = kStepStart;
  SimTime finish = kStepStart;
  for (const RankId rank : graph.rank_ids()) {
    const RankMemory& memory = graph.rank(rank).memory;
    SimTime rank_end = kStepStart;
    Bytes held = memory.static_bytes();
    Bytes peak = held;
    for (size_t i = 0; i < schedule.order[rank].size(); ++i) {
      const TaskId t = schedule.order[rank][i];
      if (!graph.tasks().Contains(t)) {
        return Violation(absl::StrFormat("rank %d: there is no task %d",
                                         rank.value(), t.value()));
      }
      if (graph.task(t).rank != rank) {
        return Violation(absl::StrFormat("%s is on rank %d",
                                         DescribeTask(graph, t), rank.value()));
      }
      ++count[t];
      if (schedule.start[t] < rank_end) {
        return Violation(absl::StrFormat(
            "rank %d: %s starts at %.3f us, before the task ahead of it ends "
            "at %.3f us",
            rank.value(), DescribeTask(graph, t),
            ToMicroseconds(schedule.start[t]), ToMicroseconds(rank_end)));
      }
      rank_end = end(t);
      held += graph.task(t).alloc;
      peak = std::max(peak, held);
      if (memory.limit > Bytes(0) && held > memory.limit) {
        return Violation(absl::StrFormat(
            "rank %d: %s needs %d B at %.3f us; the limit is %d B",
            rank.value(), DescribeTask(graph, t), held.count(),
            ToMicroseconds(schedule.start[t]), memory.limit.count()));
      }
      held -= graph.task(t).free;
    }
    if (memory.limit > Bytes(0) && peak > memory.limit) {
      return Violation(absl::StrFormat(
          "rank %d: static memory of %d B is over the limit of %d B",
          rank.value(), peak.count(), memory.limit.count()));
    }
    if (schedule.peak[rank] != peak) {
      return Violation(absl::StrFormat("rank %d: peak is %d B, not %d B",
                                       rank.value(), peak.count(),
                                       schedule.peak[rank].count()));
    }
    tasks_finish = std::max(tasks_finish, rank_end);
    finish = std::max(finish, rank_end + graph.rank(rank).epilogue);
  }
  for (const TaskId t : graph.task_ids()) {
    if (count[t] != 1) {
      return Violation(absl::StrFormat("%s is listed %d times",
                                       DescribeTask(graph, t), count[t]));
    }
  }
  for (const Dependency& d : graph.edges()) {
    if (schedule.start[d.to] < end(d.from) + d.delay) {
      return Violation(absl::StrFormat(
          "%s starts at %.3f us; %s and its transfer end at %.3f us",
          DescribeTask(graph, d.to), ToMicroseconds(schedule.start[d.to]),
          DescribeTask(graph, d.from), ToMicroseconds(end(d.from) + d.delay)));
    }
  }
  // Pairs of passes: both start together, once the inputs of both are there.
  for (const RankId rank : graph.rank_ids()) {
    const std::vector<TaskId>& order = schedule.order[rank];
    for (size_t i = 0; i < order.size(); ++i) {
      const TaskId second = order[i];
      const Task& task = graph.task(second);
      if (task.pass == Pass::kWeightGrad || task.overlaps.is_none()) continue;
      const TaskId first = task.overlaps;
      if (i == 0 || order[i - 1] != first) {
        return Violation(absl::StrFormat(
            "rank %d: %s runs together with %s and must directly follow it",
            rank.value(), DescribeTask(graph, second),
            DescribeTask(graph, first)));
      }
      for (const EdgeId e : graph.incoming(second)) {
        const Dependency& d = graph.edge(e);
        if (schedule.start[first] >= end(d.from) + d.delay) continue;
        return Violation(absl::StrFormat(
            "%s starts at %.3f us, but %s, with which it runs together, has "
            "its inputs at %.3f us",
            DescribeTask(graph, first), ToMicroseconds(schedule.start[first]),
            DescribeTask(graph, second),
            ToMicroseconds(end(d.from) + d.delay)));
      }
    }
  }
  if (schedule.tasks_finish != tasks_finish || schedule.finish != finish) {
    return Violation(absl::StrFormat(
        "its end is given as %.3f us; the tasks imply %.3f us",
        ToMicroseconds(schedule.finish), ToMicroseconds(finish)));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
