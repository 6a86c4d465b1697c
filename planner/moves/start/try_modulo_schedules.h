// Makes steps from modulo schedules (planner/construct/modulo_schedule.h) of
// shorter and shorter periods. For steps whose memory is short. Only every
// second worker does, as steps from them have other optima nearby.
#ifndef PIPELOOM_PLANNER_MOVES_START_TRY_MODULO_SCHEDULES_H_
#define PIPELOOM_PLANNER_MOVES_START_TRY_MODULO_SCHEDULES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "planner/construct/modulo_schedule.h"
#include "planner/core/sort_by_key.h"
#include "planner/moves/move.h"

namespace pipeloom::planner {

// Raises the period from a fifth over its bound until memory fits, or lowers it
// until memory does not fit any more.
class TryModuloSchedules : public Move {
 public:
  explicit TryModuloSchedules(SearchState& state);
  void Run(const SearchBudget& budget) override;
  bool has_work() const override { return search_ != nullptr; }
  void Inherit(const Move& earlier) override;

 private:
  void TryStep();
  void Keep(int64_t time, absl::Span<const int32_t> sequence);
  void NextPeriod(bool fits);
  // Returns whether a step of this period could be the best, by its length from
  // the slots alone.
  bool MayBeShorter() const;

  std::unique_ptr<ModuloSearch> search_;  // Null when done.
  int32_t period_ = 0;                    // In slots.
  int32_t fitting_ = 0;                   // The shortest that fitted, or 0.
  int64_t fitting_time_ = 0;              // The same in ns.
  int64_t changes_ = 0;                   // At this period.
  std::vector<int64_t> due_;
  std::vector<int32_t> sequence_;
  KeySorter sorter_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_TRY_MODULO_SCHEDULES_H_
