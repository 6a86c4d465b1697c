// Looks for better forms and pairs of passes for one answer of a search
// (pass_forms.h, pair_passes.h), within its limits of memory. What ranks send
// and receive is not counted: an answer may still be too large as a plan.
#ifndef PIPELOOM_PLANNER_REFINE_GRADIENT_REFINER_H_
#define PIPELOOM_PLANNER_REFINE_GRADIENT_REFINER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/search_budget.h"
#include "planner/memory/choose_memory.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Returns the same options for one round that keeps a selection on the ranks
// that it fits on, which takes less time.
ChooseMemoryOptions OnlyRepairs(ChooseMemoryOptions options);

// Chooses memory for these orders within the limits of `limited`, which has
// everything kept; goes on from `selection`, a guess. nullopt: nothing fits.
absl::StatusOr<std::optional<partition::MemorySelection>> ChooseAnew(
    const StageGraph& limited, const partition::StepMemory& memory,
    const RankOrders& orders, const partition::MemorySelection& selection,
    const ChooseMemoryOptions& options, int threads,
    const std::function<bool()>& is_over);

// One search for better gradients. Not thread-safe.
class GradientRefiner {
 public:
  // Keeps references. `limited` has everything kept and the answer's limits;
  // `made` has choices of `choices`. Looks for answers that take less than
  // `shortest` ns; with kNoLimit, for any answer, even if the time is over.
  GradientRefiner(const StageGraph& limited,
                  const partition::StepMemory& choices,
                  const MemorySchedule& made, int64_t shortest,
                  const SearchBudget& budget);

  // Tries forms and pairs with the answer's memory choices. REQUIRES: the
  // answer fits with them.
  absl::Status Run();
  // Tries pairs with all backwards split, weight gradients put off, and memory
  // choices that make room for that: those for fused backwards have left none.
  // The answer's own choices are a guess and need not fit. They are chosen with
  // `options` or, given the choices of such a run within higher limits, by
  // repairing those.
  absl::Status RunAnew(
      const std::optional<partition::MemorySelection>& before = std::nullopt,
      const ChooseMemoryOptions& options = {});

  // Returns what was found, the fastest first; only answers that were faster
  // than all before.
  std::vector<MemorySchedule> TakeAnswers();

 private:
  bool IsOver() const {
    return budget_.stop.stop_requested() ||
           (budget_.expired && budget_.expired());
  }
  absl::Status Apply(const partition::MemorySelection& selection);
  absl::Status TryPairs(const partition::MemorySelection& selection);
  absl::Status TrySplit();

  const StageGraph& limited_;
  const MemorySchedule& made_;
  const SearchBudget& budget_;
  partition::StepMemory memory_;           // Has the forms that are tried.
  RankOrders orders_;                      // The orders that are tried.
  StageGraph graph_{};                     // Has both forms and choices.
  int64_t shortest_;                       // Step time in ns.
  std::vector<MemorySchedule> answers_{};  // In the order in which they came.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_REFINE_GRADIENT_REFINER_H_
