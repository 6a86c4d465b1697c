#include "planner/memory_search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/choose_memory.h"
#include "planner/flat_graph.h"
#include "planner/list_scheduler.h"
#include "planner/memory_feasibility.h"
#include "planner/order_portfolio.h"
#include "planner/order_search.h"
#include "planner/plan_bound.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::StepMemory;

// Shares of the way from keeping everything to the least, for all modules.
constexpr double kLevels[] = {0, 1, 0.5, 0.25, 0.75};
// List schedules that a level is judged by.
constexpr int kTries = 4;
// Shares of the budget at which levels are chosen, and the order is searched
// for the first choices.
constexpr double kLevelsUntil = 0.2;
constexpr double kOrderUntil = 0.8;
// How good a level is shows only once its order has been searched: the same for
// the best level and then for the next, if that is little worse.
constexpr double kRaceUntil[] = {0.4, 0.6};
constexpr double kRaceMost = 1.04;
// Where copies are offered, for the best with them and for the best without.
constexpr double kCopyRaceUntil[] = {0.35, 0.5};

// How long list schedules that follow an order wait for what is next in it, in
// durations of what could run instead.
constexpr double kFollowPatience[] = {0, 1, 8};

struct Known {
  MemorySelection selection{};
  int64_t time = kNoLimit;
  RankOrders orders{};
};

// Levels for all modules, and for each module alone, without copies.
std::vector<MemorySelection> Levels(const StepMemory& memory,
                                    const Partition& partition) {
  std::vector<MemorySelection> levels;
  const auto add = [&](MemorySelection selection) {
    if (std::find(levels.begin(), levels.end(), selection) == levels.end()) {
      levels.push_back(std::move(selection));
    }
  };
  const std::vector<Bytes> copies = memory.CopySizes();
  const StepMemory uncopied = copies.empty() ? memory : memory.WithoutCopies();
  const auto without_copies = [&](MemorySelection selection) {
    return copies.empty() ? selection : FromWithoutCopies(memory, selection);
  };
  for (const double share : kLevels) {
    add(without_copies(uncopied.Level(share)));
  }
  const MemorySelection leanest = without_copies(uncopied.Leanest());
  std::vector<ModuleId> modules;
  for (const partition::StagePair& pair : memory.pairs) {
    const ModuleId module = partition.stages[pair.stage].module;
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) {
      modules.push_back(module);
    }
  }
  if (modules.size() > 1) {
    for (const ModuleId module : modules) {
      MemorySelection selection = memory.KeepEverything();
      for (const StagePairId pair : memory.pairs.ids()) {
        if (partition.stages[memory.pairs[pair].stage].module == module) {
          selection[pair] = leanest[pair];
        }
      }
      add(std::move(selection));
    }
  }
  return levels;
}

// With copies that cost no time, of all sizes or up to the middle one: the
// largest decides how much room all of them take. Then the least of all.
std::vector<MemorySelection> CopyLevels(const StepMemory& memory) {
  const std::vector<Bytes> copies = memory.CopySizes();
  if (copies.empty()) return {};
  const Bytes middle = copies[copies.size() / 2];
  std::vector<MemorySelection> levels = {memory.Copied(middle)};
  if (copies.back() > middle) levels.push_back(memory.Copied(copies.back()));
  levels.push_back(memory.Leanest());
  return levels;
}

class MemorySearch {
 public:
  MemorySearch(const StageGraph& graph, const StepMemory& memory, uint64_t seed)
      : graph_(&graph),
        memory_(&memory),
        chooser_(graph, memory),
        seed_(seed) {}

  const std::optional<Known>& best() const { return best_; }
  // Puts what is known aside; what comes next begins anew.
  std::optional<Known> Take() { return std::exchange(best_, std::nullopt); }
  void Offer(std::optional<Known> known) {
    if (!known.has_value()) return;
    if (!best_.has_value() || known->time < best_->time)
      best_ = std::move(known);
  }
  int64_t evaluations() const { return evaluations_; }

  // A few list schedules with the selection's graph; then the best choices for
  // the best of them.
  absl::Status Try(const MemorySelection& selection, int tries,
                   const SearchBudget& budget) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, *memory_, selection));
    const FlatGraph flat(chosen);
    const OrderUnits units(chosen);
    OrderEvaluator evaluator(flat, units);
    if (!evaluator.scheduler().CanRun()) {
      return DescribeShortage(chosen, evaluator.scheduler().shortage());
    }
    Known level{.selection = selection};
    int made = 0;
    for (const OrderChoice& choice : OrderPortfolio(flat, units)) {
      if (choice.idealised) continue;
      if (made > 0 && budget.Exhausted(evaluations_)) break;
      const int64_t time = evaluator.Evaluate(choice);
      ++evaluations_;
      if (time < level.time) {
        level.time = time;
        level.orders = OrdersOf(flat, evaluator.sequence());
      }
      if (++made == tries) break;
    }
    if (level.time >= kNoLimit) return absl::OkStatus();
    if (tries > 1) PIPELOOM_RETURN_IF_ERROR(ChooseFor(budget, &level));
    if (!best_.has_value() || level.time < best_->time) {
      next_ = std::exchange(best_, std::move(level));
    } else if (!next_.has_value() || level.time < next_->time) {
      next_ = std::move(level);
    }
    return absl::OkStatus();
  }

  // The next best level, if it is little worse than the best.
  std::optional<Known> TakeNext() {
    std::optional<Known> next = std::exchange(next_, std::nullopt);
    if (!best_.has_value() || !next.has_value() ||
        static_cast<double>(next->time) >
            kRaceMost * static_cast<double>(best_->time)) {
      return std::nullopt;
    }
    return next;
  }

  // Searches the orders of the best and of `other` for a while.
  absl::Status Race(std::optional<Known> other, const double (&until)[2],
                    const SearchBudget& budget) {
    if (best_.has_value() && other.has_value()) {
      PIPELOOM_RETURN_IF_ERROR(Order(budget.Until(until[0])));
      std::swap(best_, other);
      PIPELOOM_RETURN_IF_ERROR(Order(budget.Until(until[1])));
    }
    Offer(std::move(other));
    return absl::OkStatus();
  }

  // Goes on from an earlier answer, whose choices may be too much now.
  absl::Status Resume(const MemorySchedule& start, const SearchBudget& budget) {
    Known known{.selection = start.selection,
                .orders = start.found.schedule.order};
    PIPELOOM_RETURN_IF_ERROR(ChooseFor(budget, &known));
    if (known.time < kNoLimit) best_ = std::move(known);
    const int64_t before = start.found.schedule.step_time().count();
    if (best_.has_value() && best_->time <= before) return absl::OkStatus();
    return Follow(start, budget);
  }

  // The best choices for the best order so far.
  absl::Status Choose(const SearchBudget& budget) {
    return ChooseFor(budget, &*best_);
  }

  // Searches the order for the best choices so far.
  absl::Status Order(const SearchBudget& budget) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, *memory_, best_->selection));
    SearchBudget rest = budget;
    if (rest.max_evaluations != std::numeric_limits<int64_t>::max()) {
      rest.max_evaluations -= evaluations_;
    }
    if (rest.max_evaluations < 1) return absl::OkStatus();
    PIPELOOM_ASSIGN_OR_RETURN(
        SearchResult found, SearchGraph(chosen, seed_++, rest, best_->orders));
    evaluations_ += found.evaluations;
    const int64_t time = found.schedule.step_time().count();
    if (time < best_->time) {
      best_->time = time;
      best_->orders = std::move(found.schedule.order);
    }
    return absl::OkStatus();
  }

 private:
  // An order made for more room is seldom mended by what is kept alone: list
  // schedules that keep to it as far as the limits let them, the choices as
  // they are, and then made anew.
  absl::Status Follow(const MemorySchedule& start, const SearchBudget& budget) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, *memory_, start.selection));
    const FlatGraph flat(chosen);
    ListScheduler scheduler(flat);
    const std::vector<int32_t> sequence =
        Linearize(flat, start.found.schedule.order);
    if (!scheduler.CanRun() || sequence.empty()) return absl::OkStatus();
    Known known{.selection = start.selection};
    for (const double patience : kFollowPatience) {
      const int64_t time = scheduler.Run({.order = sequence,
                                          .prefer = Prefer::kPriority,
                                          .patience = patience,
                                          .give_up = known.time});
      ++evaluations_;
      if (time >= known.time) continue;
      known.time = time;
      known.orders = OrdersOf(flat, scheduler.sequence());
    }
    if (known.time >= kNoLimit) return absl::OkStatus();
    PIPELOOM_RETURN_IF_ERROR(ChooseFor(budget, &known));
    Offer(std::move(known));
    return absl::OkStatus();
  }

  // Leaves `known` as it is when nothing fits or nothing is better.
  absl::Status ChooseFor(const SearchBudget& budget, Known* known) {
    if (!memory_->has_choices()) return absl::OkStatus();
    const absl::StatusOr<int64_t> time =
        chooser_.Choose(known->orders, known->selection, budget, {});
    evaluations_ += chooser_.evaluations();
    if (!time.ok()) {
      return absl::IsResourceExhausted(time.status()) ? absl::OkStatus()
                                                      : time.status();
    }
    if (*time < known->time) {
      known->time = *time;
      known->selection = chooser_.selection();
    }
    return absl::OkStatus();
  }

  const StageGraph* graph_;
  const StepMemory* memory_;
  MemoryChooser chooser_;
  uint64_t seed_;
  int64_t evaluations_ = 0;
  std::optional<Known> best_{};
  std::optional<Known> next_{};  // The next best level tried.
};

}  // namespace

absl::StatusOr<MemorySchedule> SearchWithMemory(const StageGraph& graph,
                                                const StepMemory& memory,
                                                const Partition& partition,
                                                uint64_t seed,
                                                const SearchBudget& budget,
                                                const MemorySchedule* start) {
  MemorySearch search(graph, memory, seed);
  const bool only_one = budget.max_evaluations <= 1;
  const SearchBudget first = budget.Until(kLevelsUntil);
  if (start != nullptr) PIPELOOM_RETURN_IF_ERROR(search.Resume(*start, budget));
  const bool resumed = search.best().has_value();
  const auto try_levels = [&](const std::vector<MemorySelection>& levels,
                              int always,
                              const SearchBudget& part) -> absl::Status {
    int tried = 0;
    for (const MemorySelection& level : levels) {
      if (search.best().has_value() &&
          (resumed || (tried >= always &&
                       (only_one || part.Exhausted(search.evaluations()))))) {
        break;
      }
      ++tried;
      const absl::Status status =
          search.Try(level, only_one ? 1 : kTries, part);
      if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
    }
    return absl::OkStatus();
  };
  const std::vector<MemorySelection> copy_levels = CopyLevels(memory);
  // The two extremes are tried whatever the budget: which is better is the one
  // thing that no search of the order makes up for.
  PIPELOOM_RETURN_IF_ERROR(
      try_levels(Levels(memory, partition), 2,
                 copy_levels.empty() ? first : budget.Until(kLevelsUntil / 2)));
  if (copy_levels.empty() && !resumed && !only_one &&
      MemoryIsShort(FlatGraph(graph))) {
    PIPELOOM_RETURN_IF_ERROR(
        search.Race(search.TakeNext(), kRaceUntil, budget));
  }
  if (!copy_levels.empty() && !resumed) {
    std::optional<Known> plain = search.Take();
    PIPELOOM_RETURN_IF_ERROR(try_levels(copy_levels, 1, first));
    if (only_one) {
      search.Offer(std::move(plain));
    } else {
      PIPELOOM_RETURN_IF_ERROR(
          search.Race(std::move(plain), kCopyRaceUntil, budget));
    }
  }
  if (!search.best().has_value()) {
    PIPELOOM_RETURN_IF_ERROR(search.Try(memory.Leanest(), 1, first));
  }
  const auto may_go_on = [&] {
    return !budget.Exhausted(search.evaluations());
  };
  if (!only_one && memory.has_choices()) {
    if (may_go_on()) {
      PIPELOOM_RETURN_IF_ERROR(search.Order(budget.Until(kOrderUntil)));
    }
    if (may_go_on()) PIPELOOM_RETURN_IF_ERROR(search.Choose(budget));
  }
  if (!only_one && may_go_on()) {
    PIPELOOM_RETURN_IF_ERROR(search.Order(budget));
  }
  MemorySchedule answer;
  answer.selection = search.best()->selection;
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph chosen,
      partition::ApplyMemory(graph, memory, answer.selection));
  PIPELOOM_ASSIGN_OR_RETURN(answer.found.schedule,
                            TimeSchedule(chosen, search.best()->orders));
  PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(chosen, answer.found.schedule));
  answer.found.evaluations = search.evaluations();
  const NamedBound bound = PlanBound(graph, &memory);
  answer.found.lower_bound = Nanoseconds(bound.time);
  answer.found.bound_source = bound.source;
  answer.found.proven_optimal =
      answer.found.schedule.step_time() == answer.found.lower_bound;
  return answer;
}

}  // namespace pipeloom::planner
