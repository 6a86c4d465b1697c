// The last step of every strategy: finds better forms of passes for the order
// that it found (pass_forms.h, pair_passes.h). All strategies have the same
// forms. Those that choose memory by stage pair also have it chosen anew for
// weight gradients that are put off; for those with one setting a module,
// plan_alone.cc refines leaner settings too.
#ifndef PIPELOOM_PLANNER_STEP_REFINE_PASSES_H_
#define PIPELOOM_PLANNER_STEP_REFINE_PASSES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/plan/microbatches.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/bounds/lower_bound.h"
#include "planner/step/plan_choice.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// A step whose trained stage pairs have weight-gradient tasks, so that each
// pair can have either form.
struct SplitStep {
  partition::BuiltGraph built{};
  partition::StepMemory memory{};
};

// Turns `made`, an answer for the graph `fused`, which has weight-gradient
// tasks for some pairs or none, into an answer for `split`, which has them for
// more pairs. Both are of the same microbatches. Choices and order stay, each
// task that is added comes right after its backward, and every backward is
// fused that can be. `made` selects from `memory`. Returns NotFound if the
// split step lacks one of the choices.
absl::StatusOr<MemorySchedule> InSplitStep(
    const partition::BuiltGraph& split,
    const partition::StepMemory& split_memory,
    const partition::BuiltGraph& fused, const partition::StepMemory& memory,
    const MemorySchedule& made);

// The split step of some microbatches, and an answer for it.
struct SplitAnswer {
  SplitStep step{};
  MemorySchedule made{};
};
// Builds the split step of the same microbatches, and turns `made`, an answer
// for a step with fused backwards only, into an answer for it: the same
// choices, order and times. `made` selects from `memory`.
absl::StatusOr<SplitAnswer> ToSplit(const PreparedJob& job,
                                    const Microbatches& microbatches,
                                    const partition::BuiltGraph& fused,
                                    const partition::StepMemory& memory,
                                    const MemorySchedule& made);

// A step as it is searched and as it is, with split backwards. Refers to all of
// it.
struct SearchedStep {
  // A graph without the weight gradients that AsIfPaired fuses, with its
  // choices; or the same as the two below.
  const partition::BuiltGraph& searched_built;
  const partition::StepMemory& searched;
  const partition::BuiltGraph& built;
  const partition::StepMemory& memory;

  // Returns whether it is searched as if passes were paired.
  bool as_if() const { return &searched_built != &built; }
};

// Returns `from`, which is for `step.searched_built`, as a candidate for
// `step.built` with fused backwards, as MakeToFit does: the times are others.
// REQUIRES: step.as_if().
absl::StatusOr<Candidate> AsFused(const PreparedJob& job,
                                  const PlanInput& input,
                                  const SearchedStep& step,
                                  const Candidate& from,
                                  const SearchBudget& budget);

// Refines the gradients of `from`, which is as for AsFused, and returns the
// best plan for `step.built`; errors as there.
absl::StatusOr<Candidate> RefineSearched(const PreparedJob& job,
                                         const PlanInput& input,
                                         const SearchedStep& step,
                                         const Candidate& from,
                                         const SearchBudget& budget);

// Returns the choices with every pair fused that can be, for good.
partition::StepMemory OnlyFused(const partition::StepMemory& memory);

// Improves the forms of the gradients of `best`, whose answer is for `built`
// and `memory` with split backwards. `best` stays as it is if the step gets no
// shorter or if the tensors that ranks hold would not fit. Stops early when the
// time of `budget` is over; evaluations are not counted.
absl::Status RefineGradients(const PreparedJob& job, const PlanInput& input,
                             const partition::BuiltGraph& built,
                             const partition::StepMemory& memory,
                             const SearchBudget& budget, Candidate* best);
// Runs forwards together with backwards in the order of `from`, on the same
// terms. REQUIRES: the job's trainer can.
absl::Status RefineForwards(const PreparedJob& job, const PlanInput& input,
                            const partition::BuiltGraph& built,
                            const partition::StepMemory& memory,
                            const Candidate& from, const SearchBudget& budget,
                            Candidate* best);
// Does the one and, if the job's trainer can, the other for the same answer.
absl::Status RefinePasses(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const partition::StepMemory& memory,
                          const SearchBudget& budget, Candidate* best);

// Fuses the last backwards or all (planner/refine/fuse_last.h) of the ranks
// that the step of `best` ends with, as long as it gets shorter, on the same
// terms as RefineGradients.
absl::Status FuseLastBackwards(const PreparedJob& job, const PlanInput& input,
                               const partition::BuiltGraph& built,
                               const partition::StepMemory& memory,
                               const SearchBudget& budget, Candidate* best);

// Returns the lower bound of a step over all choices of `memory` and every pass
// form that the job's trainer can run: QuickPlanBound if little time is left.
NamedBound BoundOfStep(const JobSpec& job, const StageGraph& graph,
                       const partition::StepMemory& memory,
                       const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_REFINE_PASSES_H_
