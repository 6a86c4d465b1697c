// Checks of the meaning of a plan: parts of ValidateExecutionPlan
// (ir/plan/execution_plan.h). Share no code with what makes plans. Errors are
// FailedPrecondition, with the task or edge, the field, its value and what
// would be right. Safe from any number of threads.
#ifndef PIPELOOM_IR_CHECK_CHECK_PASSES_H_
#define PIPELOOM_IR_CHECK_CHECK_PASSES_H_

#include "absl/status/status.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom {

// Checks that the tasks are the passes of a step:
// - a stage is of one module and on one rank, and every sub-microbatch of a
//   module has one forward on each stage of that module; sub-microbatches of a
//   microbatch and module count from 0;
// - a backward comes after its own forward and a weight gradient after its own
//   backward, by an edge or at least by the order of the program; all stages
//   and sub-microbatches of a module in a microbatch have a backward or none
//   has; a module that has one in one microbatch has one in each, unless only
//   what feeds it is trained;
// - forwards depend on the stage before, or on every sub-microbatch of each
//   module that feeds theirs; backwards depend in reverse on the same, by
//   tensors of the same size; other edges only order and carry nothing;
// - over its passes a stage gives back the memory that it takes;
// - only a backward recomputes.
// Tasks without a stage and a microbatch are no passes: then none may have one.
// O(tasks log tasks + edges), without the logarithm if forwards are numbered by
// microbatch, module, sub-microbatch and stage.
absl::Status CheckPasses(const ExecutionPlan& plan);

// Checks that each module with a loss has one share for each of its
// sub-microbatches, in order, that no share has more tokens than its tensors
// have rows, and that shares add up to the totals of the step at most.
// REQUIRES: CheckPasses. O(tasks + edges).
absl::Status CheckLoss(const ExecutionPlan& plan);

// Checks the padded shapes of a plan: sorted, of sub-microbatches that have
// tasks, all those of a module or none, with no negative size. O(tasks log
// tasks).
absl::Status CheckPaddedShapes(const ExecutionPlan& plan);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_CHECK_CHECK_PASSES_H_
