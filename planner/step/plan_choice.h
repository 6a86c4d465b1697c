// One candidate plan of a step: a memory choice, scheduled within limits that
// leave room for the tensors that ranks send and receive, then lowered and
// emulated.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_CHOICE_H_
#define PIPELOOM_PLANNER_STEP_PLAN_CHOICE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/search_budget.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// A schedule with its memory choice and the plan made from it.
struct Candidate {
  // The graph's ranks with the memory limits that the schedule was made with:
  // the true limits less the room that sent and received tensors need.
  IdVector<RankId, RankSpec> limits{};
  MemorySchedule made{};
  ExecutionPlan plan{};
  StepTrace predicted{};
  // The share of the input's time that it took to lower and emulate the plan; 0
  // without a deadline.
  double lowering = 0;
};

// Returns `limits` with room for two more tensors on each rank whose limit had
// to be lowered, since another schedule may have that many more under way.
IdVector<RankId, RankSpec> WithMargin(const StageGraph& graph,
                                      IdVector<RankId, RankSpec> limits);

// Returns `limits`, where there are any, lowered by so many of the largest
// tensors that each rank sends or receives.
IdVector<RankId, RankSpec> WithRoom(const StageGraph& graph,
                                    IdVector<RankId, RankSpec> limits,
                                    int64_t tensors);

// Returns `lowered`, in which limits are lowered where ranks were over them,
// with room for some more tensors on those ranks: other choices have other
// tensors at their peaks.
IdVector<RankId, RankSpec> LoweredMore(
    const StageGraph& graph, const IdVector<RankId, RankSpec>& limits,
    const IdVector<RankId, RankSpec>& lowered);

// How often memory is chosen anew with what was missing taken from the limits.
inline constexpr int kMaxAnew = 4;

// Makes a schedule within `limits`, lowers it, emulates it and checks it. With
// `fixed`, which is for strategies that do not choose memory, the schedule is
// for that selection. If sent and received tensors, or activations on their way
// to the host and back, break a limit, the limit is lowered. A strategy that
// chooses memory first gets new choices for the same order, as in MakeToFit; if
// that does not help, and for `fixed`, the schedule is made again. Adds to
// `evaluations`, also when it fails.
absl::StatusOr<Candidate> PlanChoice(
    const PreparedJob& job, const PlanInput& input,
    const partition::BuiltGraph& built, const partition::StepMemory& memory,
    const partition::MemorySelection* fixed, IdVector<RankId, RankSpec> limits,
    const SearchBudget& budget, int64_t* evaluations);

// Spends the rest of the budget on a better plan of a strategy that chooses
// memory itself. The search runs in parts, each going on from the one before.
// An answer that breaks a limit by the tensors under way is repaired as
// MakeToFit does, or else by the next part.
absl::Status ImproveCandidate(const PreparedJob& job, const PlanInput& input,
                              const partition::BuiltGraph& built,
                              const partition::StepMemory& memory,
                              Candidate* best, int64_t* evaluations);

// Makes the plan of an answer and emulates it. Returns nullopt if the tensors
// that ranks hold break a limit of `built`; `lowered`, unless null, are limits
// that are then lowered by what is missing.
absl::StatusOr<std::optional<Candidate>> MakeCandidate(
    const PreparedJob& job, const PlanInput& input,
    const partition::BuiltGraph& built, const partition::StepMemory& memory,
    MemorySchedule made, IdVector<RankId, RankSpec> limits,
    IdVector<RankId, RankSpec>* lowered = nullptr);

// Returns `made`, which has choices of `memory`, as a candidate for `built`. If
// there is no room in `limits` for the tensors that ranks send and receive,
// memory is chosen again for the same order, within lower limits.
// ResourceExhausted: nothing was found that fits.
absl::StatusOr<Candidate> MakeToFit(const PreparedJob& job,
                                    const PlanInput& input,
                                    const partition::BuiltGraph& built,
                                    const partition::StepMemory& memory,
                                    MemorySchedule made,
                                    IdVector<RankId, RankSpec> limits,
                                    const SearchBudget& budget);

// Looks for an order with a better 90th percentile under `input.robust` until
// the budget ends. The plan stays as it is if none is found, or if the better
// order leaves no room for the tensors that ranks send and receive.
absl::StatusOr<RobustReport> MakeRobust(const PreparedJob& job,
                                        const PlanInput& input,
                                        const partition::BuiltGraph& built,
                                        const partition::StepMemory& memory,
                                        Candidate* best, int64_t* evaluations);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_CHOICE_H_
