// The search of strategies that start from others' schedules, for one step:
//
// 1. KnownStart: the best start that other strategies give.
// 2. ImproveAndRefine: searches order and memory choices; refines the passes of
//    what that found (refine_passes.h); and searches the order further with the
//    pairs of passes.
//
// The first search sees a step in which weight gradients always fill gaps
// (AsIfPaired), as refining will make it nearly so: an order that is short with
// whole backwards can be some percent longer than another once both are
// refined.
#ifndef PIPELOOM_PLANNER_STEP_IMPROVE_STEP_H_
#define PIPELOOM_PLANNER_STEP_IMPROVE_STEP_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/step/plan_choice.h"
#include "planner/step/refine_passes.h"
#include "planner/step/step_types.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

// Returns the best of the starts that other strategies give, which have fused
// backwards, for `step.searched_built`, with its weight gradients put off or in
// gaps if that is shorter; nullopt if nothing fits. With
// `leaves_room` the first one has room for the tensors that ranks sent and
// received in the most similar of `input.carried`, or some guess, so that it
// need not be made again. Sets `only_whole` if a start fits only with whole
// backwards, which `step` does not have. Adds to `evaluations`.
absl::StatusOr<std::optional<Candidate>> KnownStart(
    const StartsFromOthers& others, const PreparedJob& job,
    const PlanInput& input, const SearchedStep& step, bool leaves_room,
    bool* only_whole, int64_t* evaluations);

// Spends the budget on `best`, which is for `step.searched_built` and ends for
// `step.built`. `known` is another candidate for the same. Returns
// CarriedStep::refined_ratio.
// ResourceExhausted: with whole backwards, the search's order does not fit.
absl::StatusOr<double> ImproveAndRefine(const PreparedJob& job,
                                        const PlanInput& input,
                                        const SearchedStep& step,
                                        std::optional<Candidate> known,
                                        Candidate* best, int64_t* evaluations);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_IMPROVE_STEP_H_
