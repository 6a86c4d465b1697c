// The last step of every strategy: better forms of passes for the order that it
// found (pass_forms.h, pair_passes.h). No strategy has a form that others lack.
#ifndef PIPELOOM_PLANNER_STEP_REFINE_PASSES_H_
#define PIPELOOM_PLANNER_STEP_REFINE_PASSES_H_

#include "absl/status/statusor.h"
#include "ir/plan/microbatches.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/bounds/lower_bound.h"
#include "planner/step/plan_choice.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// A step whose trained stage pairs have weight-gradient tasks, so that each can
// have either form.
struct SplitStep {
  partition::BuiltGraph built{};
  partition::StepMemory memory{};
};

// `made`, an answer for a step with fused backwards only, as one for the split
// step of the same microbatches: the same choices, order and times. `memory`:
// that `made` selects from. NotFound: the split step lacks one of the choices.
absl::StatusOr<MemorySchedule> InSplitStep(
    const partition::BuiltGraph& split,
    const partition::StepMemory& split_memory,
    const partition::BuiltGraph& fused, const partition::StepMemory& memory,
    const MemorySchedule& made);

// The split step of the same microbatches, and `made`, which is of a step with
// fused backwards only, as an answer for it: the same choices, order and times.
// `memory`: that `made` selects from.
struct SplitAnswer {
  SplitStep step{};
  MemorySchedule made{};
};
absl::StatusOr<SplitAnswer> ToSplit(const PreparedJob& job,
                                    const Microbatches& microbatches,
                                    const partition::BuiltGraph& fused,
                                    const partition::StepMemory& memory,
                                    const MemorySchedule& made);

// Improves the forms of the passes of `best`, whose answer is for `built` and
// `memory`, of split backwards. It stays as it is where the step gets no
// shorter, or where the tensors that ranks hold would not fit. Stops early when
// the time of `budget` is over; its evaluations are not counted.
absl::Status RefinePasses(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const partition::StepMemory& memory,
                          const SearchBudget& budget, Candidate* best);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_REFINE_PASSES_H_
