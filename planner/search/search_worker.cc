#include "planner/search/search_worker.h"

#include <cstdint>

#include "planner/search/move_table.h"

namespace pipeloom::planner {
namespace {

// Rounds without a better answer after which a worker starts anew; fewer with a
// dominant microbatch, where starts differ more than the results of improving
// them, unless memory is short.
constexpr int64_t kPatience = 40;
constexpr int64_t kPatienceDominant = 1;
constexpr int64_t kPatienceToDiversify = 8;
// Cost of a turn in addition to that of its evaluations, so that a round ends
// even if no move finds anything to do.
constexpr int64_t kTurnCost = 8;

}  // namespace

SearchWorker::SearchWorker(const SearchSpace& space, int32_t index,
                           uint64_t seed)
    : state_(space, index, seed) {
  for (const MoveRow& row : MoveTable()) moves_.push_back(row.make(state_));
  if (state_.role() == WorkerRole::kDiversify) {
    stalled_cost_ = kPatience * SearchState::kRoundCost;
  }
}

void SearchWorker::Adopt(int64_t time, absl::Span<const int32_t> sequence) {
  if (!state_.Adopt(time, sequence)) return;
  for (const auto& move : moves_) move->OnAdopt();
  if (state_.role() != WorkerRole::kDiversify) stalled_cost_ = 0;
}

void SearchWorker::Learn(int64_t time, absl::Span<const int32_t> sequence) {
  state_.Learn(time, sequence);
}

void SearchWorker::Inherit(const SearchWorker& earlier) {
  for (size_t row = 0; row < moves_.size(); ++row) {
    moves_[row]->Inherit(*earlier.moves_[row]);
  }
  turn_ = earlier.turn_;
}

void SearchWorker::Round(int64_t limit, const SearchBudget& budget) {
  state_.BeginRound(limit);
  RestartIfStalled(budget);
  const int64_t before = state_.since_start().time;
  while (state_.RoundMayGoOn(budget)) {
    if (Begin(budget)) continue;
    moves_[RowOfTurn(turn_++, state_.places_matter(), state_.role())]->Run(
        budget);
    state_.Spend(0, kTurnCost);
  }
  stalled_cost_ = state_.since_start().time < before
                      ? 0
                      : stalled_cost_ + state_.round_cost();
}

bool SearchWorker::Begin(const SearchBudget& budget) {
  const absl::Span<const MoveRow> table = MoveTable();
  bool ran = false;
  for (size_t row = 0; row < moves_.size(); ++row) {
    if (table[row].stage != MoveStage::kFirst || !moves_[row]->has_work()) {
      continue;
    }
    moves_[row]->Run(budget);
    if (moves_[row]->has_work()) return true;
    ran = true;
  }
  const size_t start =
      RowOfStart(begun_, [&](size_t row) { return moves_[row]->has_work(); });
  if (start == moves_.size()) return ran;
  ++begun_;
  moves_[start]->Run(budget);
  return true;
}

void SearchWorker::RestartIfStalled(const SearchBudget& budget) {
  const int64_t patience =
      !state_.is_limited() && state_.has_dominant() ? kPatienceDominant
      : state_.role() == WorkerRole::kDiversify     ? kPatienceToDiversify
                                                    : kPatience;
  if (stalled_cost_ < patience * SearchState::kRoundCost) return;
  const absl::Span<const MoveRow> table = MoveTable();
  for (size_t row = 0; row < moves_.size(); ++row) {
    if (table[row].stage != MoveStage::kStalled) continue;
    if (!moves_[row]->has_work()) continue;
    stalled_cost_ = 0;
    for (const auto& move : moves_) move->OnRestart();
    moves_[row]->Run(budget);
    return;
  }
}

}  // namespace pipeloom::planner
