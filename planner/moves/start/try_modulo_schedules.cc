#include "planner/moves/start/try_modulo_schedules.h"

#include <algorithm>
#include <cstddef>

#include "planner/core/memory_feasibility.h"

namespace pipeloom::planner {
namespace {

// Changes tried at a period, in all and between two looks at the budget.
constexpr int64_t kChanges = 2000;
constexpr int64_t kSlice = 250;
// A step replaces the best only if it takes at most this share of its time, as
// the search goes on from it. Chosen, like kChanges, on `pipeloom bench
// --random train:60`.
constexpr double kWorthKeeping = 0.99;

}  // namespace

TryModuloSchedules::TryModuloSchedules(SearchState& state) : Move(state) {
  const MeanMicrobatch* const mean = state.space().mean;
  if (mean == nullptr || state.index() % 2 == 1 ||
      state.role() != WorkerRole::kConstruct) {
    return;
  }
  search_ = std::make_unique<ModuloSearch>(*mean);
  period_ = std::min(search_->least_period() * 6 / 5, ModuloSearch::kMaxSlots);
  due_.resize(static_cast<size_t>(state.graph().num_tasks));
  sequence_.resize(due_.size());
}

void TryModuloSchedules::Run(const SearchBudget& budget) {
  SearchState& s = state();
  const auto classes = static_cast<int64_t>(s.space().mean->classes.size());
  while (search_ != nullptr && s.RoundMayGoOn(budget)) {
    if (!MayBeShorter()) {
      search_ = nullptr;
      return;
    }
    const bool fits = search_->Search(period_, kSlice, s.random());
    changes_ += kSlice;
    // A change costs some 15 ns a class, a sweep 6 ns a task.
    s.Spend(0, 1 + kSlice * classes * 5 / (2 * s.graph().num_tasks));
    if (fits) TryStep();
    if (fits || changes_ >= kChanges) NextPeriod(fits);
  }
}

bool TryModuloSchedules::MayBeShorter() const {
  const int32_t microbatches =
      static_cast<int32_t>(state().units().period.size());
  const auto slots = static_cast<double>(search_->longest_chain()) +
                     static_cast<double>(microbatches - 1) * period_;
  return slots * static_cast<double>(search_->slot()) <
         static_cast<double>(state().overall().time);
}

void TryModuloSchedules::NextPeriod(bool fits) {
  changes_ = 0;
  if (fits) {
    fitting_ = period_;
    fitting_time_ = period_ * search_->slot();
  }
  const bool lower = fits && period_ > search_->least_period();
  const bool higher =
      !fits && fitting_ == 0 && period_ < ModuloSearch::kMaxSlots;
  if (lower) {
    --period_;
  } else if (higher) {
    ++period_;
  } else {
    search_ = nullptr;
  }
}

void TryModuloSchedules::TryStep() {
  SearchState& s = state();
  const FlatGraph& g = s.graph();
  const MeanMicrobatch& mean = *s.space().mean;
  for (size_t t = 0; t < due_.size(); ++t) {
    due_[t] = mean.microbatch[t] * period_ + search_->start()[mean.class_of[t]];
  }
  sorter_.Sort(due_, &sequence_);
  if (FitsMemory(g, sequence_)) {
    Keep(s.retimer().Retime(sequence_), sequence_);
    s.Spend(1, SearchState::kTabuCost);
  }
  const int64_t time = s.lists().Run({.order = sequence_,
                                      .prefer = Prefer::kPriority,
                                      .patience = 1,
                                      .give_up = s.since_start().time});
  Keep(time, s.lists().sequence());
  s.Spend(1, SearchState::kListCost);
}

void TryModuloSchedules::Keep(int64_t time,
                              absl::Span<const int32_t> sequence) {
  SearchState& s = state();
  if (static_cast<double>(time) <
      kWorthKeeping * static_cast<double>(s.since_start().time)) {
    s.Keep(time, sequence);
  }
}

void TryModuloSchedules::Inherit(const Move& earlier) {
  const auto& other = static_cast<const TryModuloSchedules&>(earlier);
  if (search_ == nullptr || other.fitting_time_ == 0) return;
  // Goes on from the period that was good then; slots differ with durations.
  const int64_t slots = other.fitting_time_ / search_->slot();
  period_ = static_cast<int32_t>(
      std::clamp<int64_t>(slots, std::min(period_, search_->least_period()),
                          ModuloSearch::kMaxSlots));
}

}  // namespace pipeloom::planner
