#include "planner/strategies/static_order.h"

#include <functional>
#include <iterator>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"

namespace pipeloom::planner {
namespace {

constexpr int kLevels = 8;  // Steps from keeping everything to min-memory.

class StaticStrategy : public Strategy {
 public:
  StaticStrategy(StaticOrder order, Partition partition, absl::string_view name,
                 bool split_backward)
      : order_(std::move(order)),
        partition_(std::move(partition)),
        name_(name),
        split_backward_(split_backward) {}

  absl::string_view name() const override { return name_; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel&, const BatchMetadata&,
      const std::stop_token&) const override {
    return partition_;
  }
  bool split_backward() const override { return split_backward_; }

  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition&, uint64_t,
      const SearchBudget&) const override {
    SearchResult result;
    PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                              TimeSchedule(graph, order_.For(graph)));
    const absl::Status fits = ValidateSchedule(graph, result.schedule);
    if (!fits.ok()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the order of the typical step: ", std::string(fits.message())));
    }
    result.lower_bound = LowerBound(graph);
    result.evaluations = 1;
    return result;
  }

  bool chooses_memory() const override { return true; }
  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override {
    absl::StatusOr<MemorySchedule> best = absl::UnknownError("no level");
    // Levels with copies set aside the room that copies need on their way,
    // which may be too much; so levels without copies are tried as well.
    if (!memory.CopySizes().empty()) {
      best = MakeMemorySchedule(graph, memory.WithoutCopies(), partition, seed,
                                budget);
      if (best.ok()) {
        best->selection = partition::FromWithoutCopies(memory, best->selection);
      } else if (!absl::IsResourceExhausted(best.status())) {
        return best;
      }
    }
    for (int level = 0; level <= kLevels + 1; ++level) {
      MemorySchedule made;
      made.selection = level > kLevels ? memory.Lean(1)
                       : level == kLevels
                           ? memory.MinMemory()
                           : memory.Level(level / double{kLevels});
      PIPELOOM_ASSIGN_OR_RETURN(
          const StageGraph chosen,
          partition::ApplyMemory(graph, memory, made.selection));
      auto found = MakeSchedule(chosen, partition, seed, budget);
      if (found.ok()) {
        made.found = *std::move(found);
        if (!best.ok() || made.found.schedule.step_time() <
                              best->found.schedule.step_time()) {
          best = std::move(made);
        }
      } else if (!absl::IsResourceExhausted(found.status())) {
        return found.status();
      } else if (!best.ok()) {
        best = found.status();
      }
      if (!memory.has_choices()) break;
    }
    // The bound for any memory choice.
    if (best.ok()) best->found.lower_bound = LowerBound(graph);
    return best;
  }
  // The order is fixed, so there is nothing to go on with.
  absl::StatusOr<MemorySchedule> ImproveMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule&, uint64_t seed,
      const SearchBudget& budget) const override {
    return MakeMemorySchedule(graph, memory, partition, seed, budget);
  }

 private:
  StaticOrder order_;
  Partition partition_;
  absl::string_view name_;
  bool split_backward_ = true;
};

}  // namespace

StaticOrder::StaticOrder(const StageGraph& graph, const StepTrace& trace) {
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kTask) continue;
    const Task& task = graph.task(span.task);
    places_[{task.stage, task.pass}][{task.microbatch, task.sub_microbatch}] =
        (span.start - kStepStart).count();
  }
  // A whole backward stands for its weight gradient too.
  std::map<StageId, Places> whole;
  for (const auto& [stage_and_pass, backwards] : places_) {
    const auto& [stage, pass] = stage_and_pass;
    if (pass == Pass::kBackward) whole[stage] = backwards;
  }
  for (const auto& [stage, backwards] : whole) {
    places_[{stage, Pass::kWeightGrad}].insert(backwards.begin(),
                                               backwards.end());
  }
}

int64_t StaticOrder::PlaceOf(const Task& task) const {
  const auto found = places_.find({task.stage, task.pass});
  // The typical step had nothing for the stage at all.
  if (found == places_.end()) return 0;
  const auto& mine = found->second;
  // The first place beyond the task's own.
  const auto after = mine.upper_bound({task.microbatch, task.sub_microbatch});
  if (after == mine.begin()) return after->second;
  const auto before = std::prev(after);
  if (after == mine.end() || before->first.first == task.microbatch) {
    return before->second;
  }
  const int32_t up = after->first.first.value() - task.microbatch.value();
  const int32_t down = task.microbatch.value() - before->first.first.value();
  return up < down ? after->second : before->second;
}

RankOrders StaticOrder::For(const StageGraph& graph) const {
  RankOrders orders(graph.num_ranks());
  IdVector<TaskId, int32_t> missing(graph.num_tasks(), 0);
  for (const Dependency& edge : graph.edges()) ++missing[edge.to];
  using Entry = std::pair<int64_t, TaskId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (const TaskId t : graph.task_ids()) {
    if (missing[t] == 0) ready.push({PlaceOf(graph.task(t)), t});
  }
  while (!ready.empty()) {
    const TaskId t = ready.top().second;
    ready.pop();
    orders[graph.task(t).rank].push_back(t);
    for (const EdgeId e : graph.outgoing(t)) {
      const TaskId next = graph.edge(e).to;
      if (--missing[next] == 0) ready.push({PlaceOf(graph.task(next)), next});
    }
  }
  return orders;
}

std::unique_ptr<Strategy> ReplayOf(const PlanResult& plan,
                                   const Partition& partition,
                                   absl::string_view name,
                                   bool split_backward) {
  return std::make_unique<StaticStrategy>(
      StaticOrder(plan.plan.graph, plan.predicted), partition, name,
      split_backward);
}

absl::StatusOr<std::unique_ptr<Strategy>> MakeStatic(const PreparedJob& job,
                                                     const PlanInput& typical) {
  PIPELOOM_ASSIGN_OR_RETURN(const PlanResult plan, PlanStep(job, typical));
  return ReplayOf(plan, job.partition, "static", /*split_backward=*/true);
}

}  // namespace pipeloom::planner
