// The table of all moves: which there are, and when each has its turn. To add
// a move, write its class (planner/moves/move.h) and its line in
// move_table.cc.
#ifndef PIPELOOM_PLANNER_SEARCH_MOVE_TABLE_H_
#define PIPELOOM_PLANNER_SEARCH_MOVE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner/moves/move.h"
#include "planner/moves/search_state.h"

namespace pipeloom::planner {

// When a move may have a turn.
enum class MoveStage : uint8_t {
  kFirst,    // Once, before all others; kStart follows in the same turn.
  kStart,    // Then, in the order of the table, until none has more work.
  kTurn,     // Again and again from then on.
  kStalled,  // When long nothing better was found.
};

// Some of every `every` turns; by default none.
struct Turns {
  constexpr Turns() = default;
  // REQUIRES: 0 <= each of `at` < period <= 64.
  constexpr Turns(int64_t period, std::initializer_list<int64_t> at)
      : every(period) {
    for (const int64_t turn : at) mask |= uint64_t{1} << turn;
  }
  constexpr bool Contains(int64_t turn) const {
    return (mask >> (turn % every) & 1) != 0;
  }

  int64_t every = 1;
  uint64_t mask = 0;  // A bit for each of `every` turns.
};

// A line of the table.
struct MoveRow {
  absl::string_view name{};
  std::unique_ptr<Move> (*make)(SearchState& state) = nullptr;
  MoveStage stage = MoveStage::kTurn;
  // For kTurn: the turns of steps whose microbatches keep their places, and of
  // those where SearchState::places_matter(). Where several moves have a turn,
  // it is the first one's.
  // For kStart: the turns of the beginning that it has while others have work
  // too; by default all.
  Turns turns{};
  Turns turns_with_places{};
  // Turns of workers that solve windows, before all others.
  Turns turns_to_solve{};
};

// Returns the table.
absl::Span<const MoveRow> MoveTable();

// Returns the index of the kStart row that has a turn of the beginning, counted
// from 0, where `has_work` tells which rows have work; the number of rows if
// none has.
size_t RowOfStart(int64_t turn,
                  const std::function<bool(size_t row)>& has_work);

// Returns the index of the row whose move has a turn, counted from 0.
size_t RowOfTurn(int64_t turn, bool places_matter, WorkerRole role);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_MOVE_TABLE_H_
