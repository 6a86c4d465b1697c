#include "planner/strategies/memory_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/bounds/plan_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/executor.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/memory/choose_memory.h"
#include "planner/memory/memory_levels.h"
#include "planner/moves/order_search.h"
#include "planner/passes/pass_forms.h"
#include "planner/search/order_portfolio.h"

namespace pipeloom::planner {
namespace {

using partition::FormSelection;
using partition::MemorySelection;
using partition::PassForm;
using partition::StepMemory;

// Shares of the way from keeping everything to min-memory, for all modules.
constexpr double kLevels[] = {0, 1, 0.5, 0.25, 0.75};
// Levels judged at once, for any number of threads.
constexpr size_t kAtOnce = 2;
// List schedules that a level is judged by.
constexpr int kTries = 4;
// Batches of forms that a level is judged with.
constexpr int32_t kLevelFormBatches = 4;
// Shares of the budget until which levels are chosen, and until which the order
// is searched before forms and memory choices are made anew.
constexpr double kLevelsUntil = 0.2;
constexpr double kOrderUntil[] = {0.8};
// Shares of the budget until which the orders of the best level and of the next
// one are searched; the latter only if its time is at most kRaceMost times the
// best. How good a level is shows only once its order has been searched.
constexpr double kRaceUntil[] = {0.4, 0.6};
constexpr double kRaceMost = 1.04;
// The same where copies are offered, for the best level with them and for the
// best one without.
constexpr double kCopyRaceUntil[] = {0.35, 0.5};

// How long list schedules that follow an order wait for the next task in it, in
// durations of the task that could run instead.
constexpr double kFollowPatience[] = {0, 1, 8};

// An answer: choices, forms and an order for them.
struct Known {
  MemorySelection selection{};
  FormSelection forms{};
  int64_t time = kNoLimit;
  RankOrders orders{};
  // The search that found the orders, maybe for the choices before these.
  std::shared_ptr<GraphSearch> search{};
  // Whether the choices are the best found for the orders.
  bool chosen = false;
};

// Returns levels with copies that cost no time, up to the middle size and of
// all sizes, as the largest copy decides how much room all of them take; then
// min-memory.
std::vector<MemorySelection> CopyLevels(const StepMemory& memory) {
  const std::vector<Bytes> copies = memory.CopySizes();
  if (copies.empty()) return {};
  const Bytes middle = copies[copies.size() / 2];
  std::vector<MemorySelection> levels = {memory.Copied(middle)};
  if (copies.back() > middle) levels.push_back(memory.Copied(copies.back()));
  levels.push_back(memory.MinMemory());
  return levels;
}

class MemorySearch {
 public:
  // `bound`: lower bound of the step time for any choices.
  MemorySearch(const StageGraph& graph, const StepMemory& memory,
               const NamedBound& bound, uint64_t seed)
      : graph_(&graph),
        has_form_choice_(HasFormChoice(memory)),
        memories_{memory, memory},
        bound_(bound),
        seed_(seed) {}

  const std::optional<Known>& best() const { return best_; }
  // Takes out what is known, so that the search begins anew.
  std::optional<Known> Take() { return std::exchange(best_, std::nullopt); }
  void Offer(std::optional<Known> known) {
    if (!known.has_value()) return;
    if (!best_.has_value() || known->time < best_->time)
      best_ = std::move(known);
  }
  int64_t evaluations() const { return evaluations_; }
  const absl::Status& shortage() const { return shortage_; }

  // Judges up to kAtOnce levels at once: each by a few list schedules with its
  // graph, and then with the best choices for the best of them.
  absl::Status Try(absl::Span<const MemorySelection> levels, int tries,
                   const SearchBudget& budget) {
    std::array<Judged, kAtOnce> judged;
    const auto number = static_cast<int32_t>(levels.size());
    ParallelFor(budget.threads, number, [&](int32_t i) {
      judged[i] = Judge(levels[i], tries, budget, static_cast<size_t>(i));
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

  // Takes the next best level; nullopt if it is much worse than the best.
  std::optional<Known> TakeNext() {
    std::optional<Known> next = std::exchange(next_, std::nullopt);
    if (!best_.has_value() || !next.has_value() ||
        static_cast<double>(next->time) >
            kRaceMost * static_cast<double>(best_->time)) {
      return std::nullopt;
    }
    return next;
  }

  // Searches the orders of the best level and of `other` for a while.
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

  // Goes on from an earlier answer, whose choices may need more memory than
  // there is.
  absl::Status Resume(const MemorySchedule& start, const SearchBudget& budget) {
    Known known{.selection = start.selection,
                .forms = start.forms,
                .orders = start.found.schedule.order,
                .search = start.search};
    PIPELOOM_RETURN_IF_ERROR(ChooseFor(budget, &known));
    if (known.time < kNoLimit) best_ = std::move(known);
    const int64_t before = start.found.schedule.step_time().count();
    if (best_.has_value() && best_->time <= before) return absl::OkStatus();
    return Follow(start, budget);
  }

  // Takes another strategy's answer if it is better; with its own choices if
  // they fit.
  absl::Status TryKnown(const MemorySchedule& known,
                        const SearchBudget& budget) {
    Known level{.selection = known.selection,
                .forms = known.forms,
                .orders = known.found.schedule.order};
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, With(level.forms), level.selection));
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

  // Makes the best choices for the best order so far.
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
        partition::ApplyMemory(*graph_, With(best_->forms), best_->selection));
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

  // Makes the best forms of passes for the best order so far. Returns whether
  // any changed.
  absl::StatusOr<bool> ChooseForms(const SearchBudget& budget) {
    if (budget.Exhausted(evaluations_)) return false;
    return ChooseFormsFor(0, PassFormOptions{}.max_batches, &evaluations_,
                          &*best_);
  }

 private:
  // Returns the memory choices with these forms, valid until the next call for
  // the slot.
  const StepMemory& With(const FormSelection& forms, size_t slot = 0) {
    memories_[slot].SetForms(forms);
    return memories_[slot];
  }

  absl::StatusOr<bool> ChooseFormsFor(size_t slot, int32_t max_batches,
                                      int64_t* evaluations, Known* known) {
    if (!has_form_choice_) return false;
    StepMemory& memory = memories_[slot];
    memory.SetForms(known->forms);
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, memory, known->selection));
    PassFormChooser chooser(chosen, memory);
    RankOrders orders = known->orders;
    const int64_t time = chooser.Choose(known->selection, &memory, &orders,
                                        {.max_batches = max_batches});
    *evaluations += chooser.batches();
    if (time >= known->time) return false;
    known->time = time;
    known->forms = memory.forms();
    known->orders = std::move(orders);
    known->chosen = false;
    return true;
  }

  // An order made for more room can seldom be repaired by memory choices alone.
  // So makes list schedules that follow it as far as the limits let them, with
  // the choices as they are, and then makes the choices anew.
  absl::Status Follow(const MemorySchedule& start, const SearchBudget& budget) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(*graph_, With(start.forms), start.selection));
    const FlatGraph flat(chosen);
    ListScheduler scheduler(flat);
    const std::vector<int32_t> sequence =
        Linearize(flat, start.found.schedule.order);
    if (!scheduler.CanRun() || sequence.empty()) return absl::OkStatus();
    Known known{.selection = start.selection,
                .forms = start.forms,
                .search = start.search};
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

  using Chooser = std::unique_ptr<MemoryChooser>;  // Made when first needed.
  struct Judged {
    absl::Status status{};
    Known level{};
    int64_t evaluations = 0;
  };
  Judged Judge(const MemorySelection& selection, int tries,
               const SearchBudget& budget, size_t slot) {
    Judged judged{.level = {.selection = selection}};
    std::vector<PassForm> forms = {PassForm::kSplit};
    if (has_form_choice_) forms.push_back(PassForm::kFused);
    for (const PassForm form : forms) {
      if (budget.Abandoned()) {
        judged.status = absl::CancelledError("stopped");
        return judged;
      }
      SetForms(form, &memories_[slot]);
      ListSchedules(tries, budget, slot, &judged);
    }
    Known& level = judged.level;
    if (level.time >= kNoLimit || absl::IsCancelled(judged.status)) {
      return judged;
    }
    judged.status = absl::OkStatus();
    if (tries == 1) return judged;
    SearchBudget alone = budget;
    alone.threads = 1;
    judged.status = ChooseFor(alone, slot, &judged.evaluations, &level);
    if (!judged.status.ok() ||
        budget.Exhausted(evaluations_ + judged.evaluations)) {
      return judged;
    }
    judged.status =
        ChooseFormsFor(slot, kLevelFormBatches, &judged.evaluations, &level)
            .status();
    return judged;
  }

  // Judges the level's choices by a few list schedules with the forms that the
  // slot's memory has.
  void ListSchedules(int tries, const SearchBudget& budget, size_t slot,
                     Judged* judged) const {
    Known& level = judged->level;
    absl::StatusOr<StageGraph> chosen =
        partition::ApplyMemory(*graph_, memories_[slot], level.selection);
    if (!chosen.ok()) {
      judged->status = chosen.status();
      return;
    }
    const FlatGraph flat(*chosen);
    const OrderUnits units(*chosen);
    OrderEvaluator evaluator(flat, units);
    if (!evaluator.scheduler().CanRun()) {
      judged->status =
          DescribeShortage(*chosen, evaluator.scheduler().shortage());
      return;
    }
    int made = 0;
    for (const OrderChoice& choice : OrderPortfolio(flat, units)) {
      if (choice.idealised) continue;
      if (budget.Abandoned()) {
        judged->status = absl::CancelledError("stopped");
        return;
      }
      if (made > 0 && budget.Exhausted(evaluations_ + judged->evaluations)) {
        break;
      }
      const int64_t time = evaluator.Evaluate(choice);
      ++judged->evaluations;
      if (time < level.time) {
        level.time = time;
        level.forms = memories_[slot].forms();
        level.orders = OrdersOf(flat, evaluator.sequence());
      }
      if (++made == tries) break;
    }
  }

  absl::Status ChooseFor(const SearchBudget& budget, Known* known) {
    int64_t evaluations = 0;
    const absl::Status status = ChooseFor(budget, 0, &evaluations, known);
    evaluations_ += evaluations;
    return status;
  }
  // Makes the best choices for an order. Leaves `known` as it is if nothing
  // fits or nothing is better.
  absl::Status ChooseFor(const SearchBudget& budget, size_t slot,
                         int64_t* evaluations, Known* known) {
    StepMemory& memory = memories_[slot];
    if (known->chosen || !memory.has_choices()) return absl::OkStatus();
    memory.SetForms(known->forms);
    Chooser& chooser = choosers_[slot];
    if (chooser == nullptr) {
      chooser = std::make_unique<MemoryChooser>(*graph_, memory);
    }
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
  bool has_form_choice_;
  // One for each slot, for concurrent work; choosers refer to them.
  std::array<StepMemory, kAtOnce> memories_;
  NamedBound bound_;
  std::array<Chooser, kAtOnce> choosers_{};
  uint64_t seed_;
  int64_t evaluations_ = 0;
  std::optional<Known> best_{};
  std::optional<Known> next_{};  // The next best level tried.
  absl::Status shortage_;  // The shortage of the last level that did not fit.
};

// Finds the level to begin with, and orders for it.
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
  // The two extremes are tried whatever the budget: no search of the order
  // makes up for the wrong one.
  PIPELOOM_RETURN_IF_ERROR(
      try_levels(MemoryLevels(memory, partition, kLevels), 2,
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
  const MemorySchedule* const given = start != nullptr ? start : known;
  const NamedBound bound =
      given != nullptr ? NamedBound{given->found.lower_bound.count(),
                                    given->found.bound_source}
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
  if (budget.Abandoned()) return absl::CancelledError("stopped");
  if (!search.best().has_value()) {
    PIPELOOM_RETURN_IF_ERROR(
        search.Try({memory.MinMemory(), memory.Lean(1)}, 1, budget));
    if (!search.best().has_value()) return search.shortage();
  }
  const auto may_go_on = [&] {
    return !budget.Exhausted(search.evaluations());
  };
  if (!only_one && (memory.has_choices() || HasFormChoice(memory))) {
    for (const double until : kOrderUntil) {
      if (may_go_on()) {
        PIPELOOM_RETURN_IF_ERROR(search.Order(budget.Until(until)));
      }
      PIPELOOM_RETURN_IF_ERROR(search.ChooseForms(budget).status());
      if (may_go_on()) PIPELOOM_RETURN_IF_ERROR(search.Choose(budget));
    }
  }
  if (!only_one && may_go_on()) {
    PIPELOOM_RETURN_IF_ERROR(search.Order(budget));
  }
  if (!only_one) {
    PIPELOOM_RETURN_IF_ERROR(search.ChooseForms(budget).status());
  }
  MemorySchedule answer;
  answer.selection = search.best()->selection;
  answer.forms = search.best()->forms;
  answer.search = search.best()->search;
  StepMemory with_forms = memory;
  with_forms.SetForms(answer.forms);
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph chosen,
      partition::ApplyMemory(graph, with_forms, answer.selection));
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
