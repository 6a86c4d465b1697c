#include "planner/strategies/starts/lent_starts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/executor.h"

namespace pipeloom::planner {
namespace {

// How a list schedule follows a lent step: how long a task waits for one that
// started before it there, in durations of the task, and whether tasks take
// memory in that order (ListPolicy).
struct Way {
  double patience = 0;
  bool keeps_takers = false;
};
// First for all steps, then for the best ones.
constexpr Way kFirstWay{};
constexpr Way kMoreWays[] = {
    {.patience = 1}, {.patience = 8}, {.patience = 1, .keeps_takers = true}};
// Number of steps that are tried with more patience, and of starts returned.
constexpr size_t kBest = 2;

// Makes the best order of one lent step in any of the ways.
absl::StatusOr<LentStart> Follow(const StageGraph& graph,
                                 const partition::StepMemory& memory,
                                 absl::Span<const LentStep> lent, size_t step,
                                 absl::Span<const Way> ways) {
  const LentStep& by = lent[step];
  LentStart start{.step = step};
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph chosen,
      partition::ApplyMemory(graph, memory, by.selection));
  const FlatGraph flat(chosen);
  ListScheduler scheduler(flat);
  if (!scheduler.CanRun()) return start;
  std::vector<int32_t> order(static_cast<size_t>(flat.num_tasks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return by.times[static_cast<size_t>(a)] < by.times[static_cast<size_t>(b)];
  });
  for (const Way& way : ways) {
    const int64_t time = scheduler.Run({.order = order,
                                        .prefer = Prefer::kPriority,
                                        .patience = way.patience,
                                        .keeps_takers = way.keeps_takers,
                                        .give_up = start.time});
    if (time >= start.time) continue;
    start.time = time;
    start.patience = way.patience;
    start.keeps_takers = way.keeps_takers;
    start.orders = OrdersOf(flat, scheduler.sequence());
  }
  return start;
}

}  // namespace

absl::StatusOr<LentStarts> MakeLentStarts(const StageGraph& graph,
                                          const partition::StepMemory& memory,
                                          absl::Span<const LentStep> lent,
                                          int32_t threads) {
  LentStarts made;
  std::vector<absl::StatusOr<LentStart>> tried(lent.size(), LentStart());
  ParallelFor(threads, static_cast<int32_t>(lent.size()), [&](int32_t i) {
    const auto step = static_cast<size_t>(i);
    tried[step] = Follow(graph, memory, lent, step, {kFirstWay});
  });
  for (absl::StatusOr<LentStart>& start : tried) {
    PIPELOOM_RETURN_IF_ERROR(start.status());
    ++made.evaluations;
    if (start->time < kNoLimit) made.starts.push_back(*std::move(start));
  }
  const auto sort = [&] {
    std::stable_sort(
        made.starts.begin(), made.starts.end(),
        [](const LentStart& a, const LentStart& b) { return a.time < b.time; });
  };
  sort();
  if (made.starts.size() > kBest) made.starts.resize(kBest);
  tried.assign(made.starts.size(), LentStart());
  ParallelFor(threads, static_cast<int32_t>(tried.size()), [&](int32_t i) {
    const auto at = static_cast<size_t>(i);
    tried[at] = Follow(graph, memory, lent, made.starts[at].step, kMoreWays);
  });
  for (size_t i = 0; i < tried.size(); ++i) {
    PIPELOOM_RETURN_IF_ERROR(tried[i].status());
    made.evaluations += std::size(kMoreWays);
    if (tried[i]->time < made.starts[i].time) {
      made.starts[i] = *std::move(tried[i]);
    }
  }
  sort();
  return made;
}

absl::StatusOr<LentStart> LentStartWithin(const StageGraph& graph,
                                          const partition::StepMemory& memory,
                                          absl::Span<const LentStep> lent,
                                          const LentStart& start) {
  const Way ways[] = {{start.patience, start.keeps_takers}, {start.patience}};
  PIPELOOM_ASSIGN_OR_RETURN(
      LentStart again, Follow(graph, memory, lent, start.step, {&ways[0], 1}));
  // The lent order may need more memory than there is now.
  if (again.time < kNoLimit || !start.keeps_takers) return again;
  return Follow(graph, memory, lent, start.step, {&ways[1], 1});
}

}  // namespace pipeloom::planner
