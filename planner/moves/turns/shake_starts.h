// List-schedules by the start times of a good answer, disturbed at random, and
// follows each promising result by a tabu search, which is accepted or not as
// in annealing.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_SHAKE_STARTS_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_SHAKE_STARTS_H_

#include <cstdint>
#include <vector>

#include "planner/core/sort_by_key.h"
#include "planner/moves/move.h"

namespace pipeloom::planner {

// Begins at the best answer, and again whenever it is too far from it.
class ShakeStarts : public Move {
 public:
  using Move::Move;
  void Run(const SearchBudget& budget) override;
  void OnRestart() override { shaken_.sequence.clear(); }

 private:
  Answer shaken_{};  // The sequence being disturbed.
  // Scratch memory of Run: by unit, by task, and tasks as a priority list.
  std::vector<int64_t> noise_{};
  std::vector<int64_t> key_{};
  std::vector<int32_t> order_{};
  KeySorter sorter_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_SHAKE_STARTS_H_
