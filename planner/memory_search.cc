#include "planner/memory_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/choose_memory.h"
#include "planner/executor.h"
#include "planner/flat_graph.h"
#include "planner/list_scheduler.h"
#include "planner/lower_bound.h"
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
// Levels judged at once, for any number of threads.
constexpr size_t kAtOnce = 2;
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
  // That found the orders, maybe for the choices before these.
  std::shared_ptr<GraphSearch> search{};
  bool chosen = false;  // The choices are the best found for the orders.
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
  // `bound`: of the step time for any choices.
  MemorySearch(const StageGraph& graph, const StepMemory& memory,
               const NamedBound& bound, uint64_t seed)
      : graph_(&graph), memory_(&memory), bound_(bound), seed_(seed) {}

  const std::optional<Known>& best() const { return best_; }
  // Puts what is known aside; what comes next begins anew.
  std::optional<Known> Take() { return std::exchange(best_, std::nullopt); }
  void Offer(std::optional<Known> known) {
    if (!known.has_value()) return;
    if (!best_.has_value() || known->time < best_->time)
      best_ = std::move(known);
  }
  int64_t evaluations() const { return evaluations_; }
  const absl::Status& shortage() const { return shortage_; }

  // Judges up to kAtOnce levels at once, each by a few list schedules with its
  // graph and then the best choices for the best of them.
  absl::Status Try(absl::Span<const MemorySelection> levels, int tries,
                   const SearchBudget& budget) {
    std::array<Judged, kAtOnce> judged;
    const auto number = static_cast<int32_t>(levels.size());
    ParallelFor(budget.threads, number, [&](int32_t i) {
      judged[i] = Judge(levels[i], tries, budget, &choosers_[i]);
    });
    for (int32_t i = 0; i < number; ++i) {
      Known& level = judged[i].level;
      evaluations_ += judged[i].evaluations;
      if (absl::IsResourceExhausted(judged[i].status)) {
        shortage_ = judged[i].status;
        continue;
      }
      PIPELOOM_RETURN_IF_ERROR(judged[i].status);
      if (level.time >= kNoLimit) continue;
      if (!best_.has_value() || level.time < best_->time) {
        next_ = std::exchange(best_, std::move(level));
      } else if (!next_.has_value() || level.time < next_->time) {
        next_ = std::move(level);
      }
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
                .orders = start.found.schedule.order,
                .search = start.search};
    PIPELOOM_RETURN_IF_ERROR(ChooseFor(budget, &known));
    if (known.time < kNoLimit) best_ = std::move(known);
    const int64_t before = start.found.schedule.step_time().count();
    if (best_.has_value() && best_->time <= before) return absl::OkStatus();
    return Follow(start, budget);
  }

  // Takes another strategy's answer if it is better; its choices as they are
  // where they fit.
  absl::Status TryKnown(const MemorySchedule& known,
                        const SearchBudget& budget) {
    Known level{.selection = known.selection,
                .orders = known.found.schedule.order};
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, *memory_, level.selection));
    PIPELOOM_ASSIGN_OR_RETURN(const Schedule schedule,
                              TimeSchedule(chosen, level.orders));
    ++evaluations_;
    if (ValidateSchedule(chosen, schedule).ok()) {
      level.time = schedule.step_time().count();
    } else {
      PIPELOOM_RETURN_IF_ERROR(ChooseFor(budget, &level));
      if (level.time >= kNoLimit) return absl::OkStatus();
    }
    Offer(std::move(level));
    return absl::OkStatus();
  }

  // The best choices for the best order so far.
  absl::Status Choose(const SearchBudget& budget) {
    return ChooseFor(budget, &*best_);
  }

  // Searches the order for the best choices so far.
  absl::Status Order(const SearchBudget& budget) {
    SearchBudget rest = budget;
    if (rest.max_evaluations != std::numeric_limits<int64_t>::max()) {
      rest.max_evaluations -= evaluations_;
    }
    if (rest.max_evaluations < 1) return absl::OkStatus();
    PIPELOOM_ASSIGN_OR_RETURN(
        StageGraph chosen,
        partition::ApplyMemory(*graph_, *memory_, best_->selection));
    const std::shared_ptr<GraphSearch> earlier = best_->search;
    if (earlier == nullptr || !(earlier->graph() == chosen)) {
      best_->search =
          std::make_shared<GraphSearch>(std::move(chosen), seed_++, bound_);
      if (earlier != nullptr) best_->search->Inherit(*earlier);
    }
    PIPELOOM_ASSIGN_OR_RETURN(SearchResult found,
                              best_->search->Run(rest, best_->orders));
    evaluations_ += found.evaluations;
    const int64_t time = found.schedule.step_time().count();
    if (time < best_->time) {
      best_->time = time;
      best_->orders = std::move(found.schedule.order);
      best_->chosen = false;
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
    Known known{.selection = start.selection, .search = start.search};
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

  using Chooser = std::unique_ptr<MemoryChooser>;  // Once it is needed.
  struct Judged {
    absl::Status status{};
    Known level{};
    int64_t evaluations = 0;
  };
  Judged Judge(const MemorySelection& selection, int tries,
               const SearchBudget& budget, Chooser* chooser) const {
    Judged judged{.level = {.selection = selection}};
    absl::StatusOr<StageGraph> chosen =
        partition::ApplyMemory(*graph_, *memory_, selection);
    if (!chosen.ok()) return {.status = chosen.status()};
    const FlatGraph flat(*chosen);
    const OrderUnits units(*chosen);
    OrderEvaluator evaluator(flat, units);
    if (!evaluator.scheduler().CanRun()) {
      return {.status =
                  DescribeShortage(*chosen, evaluator.scheduler().shortage())};
    }
    Known& level = judged.level;
    int made = 0;
    for (const OrderChoice& choice : OrderPortfolio(flat, units)) {
      if (choice.idealised) continue;
      if (made > 0 && budget.Exhausted(evaluations_ + judged.evaluations)) {
        break;
      }
      const int64_t time = evaluator.Evaluate(choice);
      ++judged.evaluations;
      if (time < level.time) {
        level.time = time;
        level.orders = OrdersOf(flat, evaluator.sequence());
      }
      if (++made == tries) break;
    }
    if (level.time >= kNoLimit || tries == 1) return judged;
    SearchBudget alone = budget;
    alone.threads = 1;
    judged.status = ChooseFor(alone, chooser, &judged.evaluations, &level);
    return judged;
  }

  absl::Status ChooseFor(const SearchBudget& budget, Known* known) {
    int64_t evaluations = 0;
    const absl::Status status =
        ChooseFor(budget, &choosers_[0], &evaluations, known);
    evaluations_ += evaluations;
    return status;
  }
  // Leaves `known` as it is when nothing fits or nothing is better.
  absl::Status ChooseFor(const SearchBudget& budget, Chooser* at_hand,
                         int64_t* evaluations, Known* known) const {
    if (known->chosen || !memory_->has_choices()) return absl::OkStatus();
    if (*at_hand == nullptr) {
      *at_hand = std::make_unique<MemoryChooser>(*graph_, *memory_);
    }
    MemoryChooser* const chooser = at_hand->get();
    const absl::StatusOr<int64_t> time =
        chooser->Choose(known->orders, known->selection, budget, {});
    *evaluations += chooser->evaluations();
    known->chosen = !budget.Exhausted(evaluations_ + *evaluations);
    if (!time.ok()) {
      return absl::IsResourceExhausted(time.status()) ? absl::OkStatus()
                                                      : time.status();
    }
    if (*time < known->time) {
      known->time = *time;
      known->selection = chooser->selection();
    }
    return absl::OkStatus();
  }

  const StageGraph* graph_;
  const StepMemory* memory_;
  NamedBound bound_;
  std::array<Chooser, kAtOnce> choosers_{};
  uint64_t seed_;
  int64_t evaluations_ = 0;
  std::optional<Known> best_{};
  std::optional<Known> next_{};  // The next best level tried.
  absl::Status shortage_;        // What the last level that did not fit lacks.
};

// The level to begin with, and orders for it.
absl::Status FindLevel(const StageGraph& graph, const StepMemory& memory,
                       const Partition& partition, const SearchBudget& budget,
                       MemorySearch* search) {
  const bool only_one = budget.max_evaluations <= 1;
  const auto try_levels = [&](const std::vector<MemorySelection>& levels,
                              size_t always,
                              const SearchBudget& part) -> absl::Status {
    for (size_t tried = 0; tried < levels.size();) {
      if (search->best().has_value() && tried >= always &&
          (only_one || part.Exhausted(search->evaluations()))) {
        break;
      }
      const absl::Span<const MemorySelection> pair =
          absl::MakeConstSpan(levels).subspan(tried, kAtOnce);
      PIPELOOM_RETURN_IF_ERROR(search->Try(pair, only_one ? 1 : kTries, part));
      tried += pair.size();
    }
    return absl::OkStatus();
  };
  const SearchBudget first = budget.Until(kLevelsUntil);
  const std::vector<MemorySelection> copy_levels = CopyLevels(memory);
  // The two extremes are tried whatever the budget: which is better is the one
  // thing that no search of the order makes up for.
  PIPELOOM_RETURN_IF_ERROR(
      try_levels(Levels(memory, partition), 2,
                 copy_levels.empty() ? first : budget.Until(kLevelsUntil / 2)));
  if (copy_levels.empty()) {
    if (only_one || !MemoryIsShort(FlatGraph(graph))) return absl::OkStatus();
    return search->Race(search->TakeNext(), kRaceUntil, budget);
  }
  std::optional<Known> plain = search->Take();
  PIPELOOM_RETURN_IF_ERROR(try_levels(copy_levels, 1, first));
  if (!only_one) return search->Race(std::move(plain), kCopyRaceUntil, budget);
  search->Offer(std::move(plain));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MemorySchedule> SearchWithMemory(
    const StageGraph& graph, const StepMemory& memory,
    const Partition& partition, uint64_t seed, const SearchBudget& budget,
    const MemorySchedule* start, const MemorySchedule* known) {
  const bool only_one = budget.max_evaluations <= 1;
  const NamedBound bound =
      start != nullptr ? NamedBound{start->found.lower_bound.count(),
                                    start->found.bound_source}
      : only_one       ? LowerBoundWithoutMemory(LeastMemory(graph, memory))
                       : PlanBound(graph, &memory);
  MemorySearch search(graph, memory, bound, seed);
  if (start != nullptr) PIPELOOM_RETURN_IF_ERROR(search.Resume(*start, budget));
  if (!search.best().has_value()) {
    PIPELOOM_RETURN_IF_ERROR(
        FindLevel(graph, memory, partition, budget, &search));
  }
  if (known != nullptr) {
    PIPELOOM_RETURN_IF_ERROR(search.TryKnown(*known, budget));
  }
  if (!search.best().has_value()) {
    PIPELOOM_RETURN_IF_ERROR(search.Try({memory.Leanest()}, 1, budget));
    if (!search.best().has_value()) return search.shortage();
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
  answer.search = search.best()->search;
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph chosen,
      partition::ApplyMemory(graph, memory, answer.selection));
  PIPELOOM_ASSIGN_OR_RETURN(answer.found.schedule,
                            TimeSchedule(chosen, search.best()->orders));
  PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(chosen, answer.found.schedule));
  answer.found.evaluations = search.evaluations();
  answer.found.lower_bound = Nanoseconds(bound.time);
  answer.found.bound_source = bound.source;
  answer.found.proven_optimal =
      answer.found.schedule.step_time() == answer.found.lower_bound;
  return answer;
}

}  // namespace pipeloom::planner
