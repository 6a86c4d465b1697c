// Plans of a step by memory rules, for strategies that do not choose memory
// themselves (planner/memory/memory_rules.h).
#ifndef PIPELOOM_PLANNER_STEP_RULE_PLANS_H_
#define PIPELOOM_PLANNER_STEP_RULE_PLANS_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/microbatches.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/search_budget.h"
#include "planner/memory/memory_rules.h"
#include "planner/step/plan_choice.h"
#include "planner/step/refine_passes.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// Tries rules until its part of the budget ends, and at least until one fits:
// first rules alike for all modules, then cheaper settings for one module after
// the other, of which the first that improves on the best is taken.
// `screen(selection)` tells whether the selection fits and is the best so far;
// `may_be_best(rule)` whether that is possible. Returns the errors of `screen`.
absl::Status ScreenRules(
    const MemoryRules& rules, const SearchBudget& whole,
    const int64_t* evaluations,
    absl::FunctionRef<bool(const MemoryRule&)> may_be_best,
    absl::FunctionRef<absl::StatusOr<bool>(const partition::MemorySelection&)>
        screen);

// Finds better forms of passes for the order of `best`, of a strategy that does
// not start from others. A step of fused backwards is first turned into one
// that has both forms; that is returned if `best` now belongs to it.
absl::StatusOr<std::optional<SplitStep>> RefineStep(
    const PreparedJob& job, const PlanInput& input,
    const Microbatches& microbatches, const partition::BuiltGraph& built,
    const partition::StepMemory& memory, const SearchBudget& budget,
    Candidate* best);

// Does the same for rules that leave more memory free than that of `best`, as
// weight gradients that are put off need some. `split` belongs to `best`. Adds
// to `evaluations`.
absl::Status RefineLeanerRules(const PreparedJob& job, const PlanInput& input,
                               const Microbatches& microbatches,
                               const partition::BuiltGraph& built,
                               const MemoryRules& rules,
                               const SearchBudget& budget, Candidate* best,
                               std::optional<SplitStep>* split,
                               int64_t* evaluations);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_RULE_PLANS_H_
