#include "planner/search/move_table.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "planner/moves/start/exchange_ends.h"
#include "planner/moves/start/improve_first.h"
#include "planner/moves/start/restart.h"
#include "planner/moves/start/try_modulo_schedules.h"
#include "planner/moves/start/try_portfolio.h"
#include "planner/moves/turns/anneal_sequence.h"
#include "planner/moves/turns/improve_best.h"
#include "planner/moves/turns/kick_microbatches.h"
#include "planner/moves/turns/perturb_choices.h"
#include "planner/moves/turns/place_microbatches.h"
#include "planner/moves/turns/relist_windows.h"
#include "planner/moves/turns/shake_starts.h"
#include "planner/moves/turns/solve_windows.h"

namespace pipeloom::planner {
namespace {

template <typename M>
std::unique_ptr<Move> Make(SearchState& state) {
  return std::make_unique<M>(state);
}

using enum MoveStage;

// clang-format off
constexpr MoveRow kMoves[] = {
    {"improve first", Make<ImproveFirst>, kFirst},
    // A quarter of the turns (three of the portfolio's take as long as one of
    // these) leaves 100 ms for both. Chosen, like the portfolio's end for large
    // graphs, on `pipeloom bench --random train:260`.
    {"try modulo schedules", Make<TryModuloSchedules>, kStart, {4, {3}}},
    {"try portfolio", Make<TryPortfolio>, kStart},
    {"exchange ends", Make<ExchangeEnds>, kStart},
    {"restart", Make<Restart>, kStalled},
    // Turns, and turns where microbatches may exchange places. Perturbed
    // choices and annealing gain least in 100 ms, and come seldom. Chosen on
    // the 119 limited problems of 1,000 and more tasks of `pipeloom bench
    // --random train:600` (docs/evaluation/search_parts.md).
    {"perturb choices", Make<PerturbChoices>, kTurn, {48, {47}}, {64, {62}}},
    {"anneal sequence", Make<AnnealSequence>, kTurn, {48, {21}}, {64, {32}}},
    // Windows have every second turn.
    {"relist windows", Make<RelistWindows>, kTurn, {2, {0}}, {2, {0}}},
    {"improve best", Make<ImproveBest>, kTurn, {6, {3}}, {}},
    {"shake starts", Make<ShakeStarts>, kTurn, {2, {1}}, {20, {1, 9}}},
    {"place microbatches", Make<PlaceMicrobatches>, kTurn, {}, {20, {5, 11, 17}}},
    {"kick microbatches", Make<KickMicrobatches>, kTurn, {}, {1, {0}}},
    {"solve windows", Make<SolveWindows>, kTurn, {}, {}, {2, {0}}},
};
// clang-format on

}  // namespace

absl::Span<const MoveRow> MoveTable() { return kMoves; }

size_t RowOfStart(int64_t turn,
                  const std::function<bool(size_t row)>& has_work) {
  const absl::Span<const MoveRow> table = MoveTable();
  size_t other = table.size();  // The first with work, whatever its turns.
  for (size_t row = 0; row < table.size(); ++row) {
    if (table[row].stage != MoveStage::kStart || !has_work(row)) continue;
    const Turns& turns = table[row].turns;
    if (turns.mask == 0 || turns.Contains(turn)) return row;
    other = std::min(other, row);
  }
  return other;
}

size_t RowOfTurn(int64_t turn, bool places_matter, WorkerRole role) {
  const absl::Span<const MoveRow> table = MoveTable();
  if (role == WorkerRole::kSolve) {
    for (size_t row = 0; row < table.size(); ++row) {
      if (table[row].turns_to_solve.Contains(turn)) return row;
    }
  }
  for (size_t row = 0; row < table.size(); ++row) {
    const Turns& turns =
        places_matter ? table[row].turns_with_places : table[row].turns;
    if (table[row].stage == MoveStage::kTurn && turns.Contains(turn)) {
      return row;
    }
  }
  PIPELOOM_CHECK(false);
  return 0;
}

}  // namespace pipeloom::planner
