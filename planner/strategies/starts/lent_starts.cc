#include "planner/strategies/starts/lent_starts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/executor.h"

namespace pipeloom::planner {
namespace {

// How long a task waits for one that started before it in the lent step, in
// durations of the task: first for all steps, then for the best ones.
constexpr double kPatience = 0;
constexpr double kMorePatience[] = {1, 8};
// Number of steps that are tried with more patience, and of starts returned.
constexpr size_t kBest = 2;

// Makes the best order of one lent step with any of the patiences.
absl::StatusOr<LentStart> Follow(const StageGraph& graph,
                                 const partition::StepMemory& memory,
                                 absl::Span<const LentStep> lent, size_t step,
                                 absl::Span<const double> patiences) {
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
  for (const double patience : patiences) {
    const int64_t time = scheduler.Run({.order = order,
                                        .prefer = Prefer::kPriority,
                                        .patience = patience,
                                        .give_up = start.time});
    if (time >= start.time) continue;
    start.time = time;
    start.patience = patience;
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
    tried[step] = Follow(graph, memory, lent, step, {kPatience});
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
    tried[at] =
        Follow(graph, memory, lent, made.starts[at].step, kMorePatience);
  });
  for (size_t i = 0; i < tried.size(); ++i) {
    PIPELOOM_RETURN_IF_ERROR(tried[i].status());
    made.evaluations += std::size(kMorePatience);
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
  return Follow(graph, memory, lent, start.step, {start.patience});
}

}  // namespace pipeloom::planner
