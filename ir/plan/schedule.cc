#include "ir/plan/schedule.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/plan/pass_pairs.h"

namespace pipeloom {
namespace {

// Checks that the second pass of each pair directly follows the first. `order`
// lists every task once.
absl::Status CheckPairsInOrder(const StageGraph& graph,
                               const IdVector<TaskId, TaskId>& seconds,
                               const RankOrders& order) {
  if (seconds.empty()) return absl::OkStatus();
  for (const std::vector<TaskId>& tasks : order) {
    for (size_t k = 0; k < tasks.size(); ++k) {
      const TaskId second = seconds[tasks[k]];
      if (second.is_none()) continue;
      if (k + 1 < tasks.size() && tasks[k + 1] == second) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s runs together with %s, which does not directly follow it",
          DescribeTask(graph, tasks[k]), DescribeTask(graph, second)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Schedule> TimeSchedule(const StageGraph& graph,
                                      RankOrders order) {
  if (order.size() != graph.num_ranks()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the order has %d ranks; the graph has %d",
                        order.size(), graph.num_ranks()));
  }
  Schedule schedule;
  IdVector<TaskId, uint8_t> listed(graph.num_tasks(), 0);
  for (const RankId rank : graph.rank_ids()) {
    for (const TaskId task : order[rank]) {
      if (!graph.tasks().Contains(task) || graph.task(task).rank != rank ||
          listed[task] != 0) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "rank %d: task %d is unknown, listed twice or of another rank",
            rank.value(), task.value()));
      }
      listed[task] = 1;
    }
    if (order[rank].size() != graph.tasks_of(rank).size()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d: %d of its %d tasks are listed", rank.value(),
          order[rank].size(), graph.tasks_of(rank).size()));
    }
  }
  schedule.start = IdVector<TaskId, SimTime>(graph.num_tasks());
  schedule.peak = IdVector<RankId, Bytes>(graph.num_ranks());

  // Ranks run until blocked; a finished producer wakes the rank it blocked. The
  // first pass of a pair waits for the inputs of the second, too.
  const IdVector<TaskId, TaskId> seconds = SecondsOfPairs(graph);
  PIPELOOM_RETURN_IF_ERROR(CheckPairsInOrder(graph, seconds, order));
  const bool has_pairs = !seconds.empty();
  IdVector<TaskId, int32_t> missing(graph.num_tasks(), 0);
  for (const Dependency& d : graph.edges()) {
    ++missing[d.to];
    if (has_pairs && IsSecondOfPair(graph.task(d.to))) {
      ++missing[graph.task(d.to).overlaps];
    }
  }
  IdVector<RankId, size_t> position(graph.num_ranks(), 0);
  IdVector<RankId, SimTime> free_at(graph.num_ranks(), kStepStart);
  std::vector<RankId> runnable;
  for (const RankId rank : graph.rank_ids()) runnable.push_back(rank);
  int32_t done = 0;
  while (!runnable.empty()) {
    const RankId rank = runnable.back();
    runnable.pop_back();
    const std::vector<TaskId>& tasks = order[rank];
    size_t& at = position[rank];
    while (at < tasks.size()) {
      const TaskId id = tasks[at];
      if (missing[id] > 0) break;
      SimTime start = free_at[rank];
      const auto await_inputs = [&](TaskId task) {
        for (const EdgeId e : graph.incoming(task)) {
          const Dependency& d = graph.edge(e);
          start = std::max(start, schedule.start[d.from] +
                                      graph.task(d.from).duration + d.delay);
        }
      };
      await_inputs(id);
      if (has_pairs && !seconds[id].is_none()) await_inputs(seconds[id]);
      schedule.start[id] = start;
      free_at[rank] = start + graph.task(id).duration;
      ++at;
      ++done;
      const auto hand_to = [&](TaskId next) {
        if (--missing[next] > 0) return;
        const RankId other = graph.task(next).rank;
        if (other != rank && position[other] < order[other].size() &&
            order[other][position[other]] == next) {
          runnable.push_back(other);
        }
      };
      for (const EdgeId e : graph.outgoing(id)) {
        const TaskId next = graph.edge(e).to;
        hand_to(next);
        if (has_pairs && IsSecondOfPair(graph.task(next))) {
          hand_to(graph.task(next).overlaps);
        }
      }
    }
  }
  if (done < graph.num_tasks()) {
    std::string waiting;
    for (const RankId rank : graph.rank_ids()) {
      if (position[rank] == order[rank].size()) continue;
      absl::StrAppendFormat(&waiting, "%s rank %d waits at %s",
                            waiting.empty() ? "" : ";", rank.value(),
                            DescribeTask(graph, order[rank][position[rank]]));
    }
    return absl::FailedPreconditionError(
        "the orders contradict the dependencies:" + waiting);
  }
  for (const RankId rank : graph.rank_ids()) {
    schedule.tasks_finish = std::max(schedule.tasks_finish, free_at[rank]);
    schedule.finish =
        std::max(schedule.finish, free_at[rank] + graph.rank(rank).epilogue);
    Bytes held = graph.rank(rank).memory.static_bytes();
    Bytes peak = held;
    for (const TaskId t : order[rank]) {
      held += graph.task(t).alloc;
      peak = std::max(peak, held);
      held -= graph.task(t).free;
    }
    schedule.peak[rank] = peak;
  }
  schedule.order = std::move(order);
  return schedule;
}

double BubbleRatio(const StageGraph& graph, Duration step_time) {
  if (graph.num_ranks() == 0 || step_time <= kZero) return 0;
  Duration busy{};
  for (const Task& task : graph.tasks()) busy += task.duration;
  return 1.0 - ToSeconds(busy) / (graph.num_ranks() * ToSeconds(step_time)) -
         EpilogueRatio(graph, step_time);
}

double EpilogueRatio(const StageGraph& graph, Duration step_time) {
  if (graph.num_ranks() == 0 || step_time <= kZero) return 0;
  Duration epilogues{};
  for (const RankSpec& rank : graph.ranks()) epilogues += rank.epilogue;
  return ToSeconds(epilogues) / (graph.num_ranks() * ToSeconds(step_time));
}

}  // namespace pipeloom
