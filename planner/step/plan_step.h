// The front door: one replica's batch of one step -> a checked plan.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_STEP_H_
#define PIPELOOM_PLANNER_STEP_PLAN_STEP_H_

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

absl::StatusOr<PreparedJob> PrepareJob(const Strategy& strategy,
                                       const emulator::StageCostModel& costs,
                                       const BatchMetadata& sample);

// Splits the batch, prices the stages, searches, lowers, emulates and checks.
// All strategies have the same memory tools
// (partition/graph/memory_candidates.h). Those that do not choose by stage pair
// themselves get the settings that an engineer would try
// (planner/memory/memory_rules.h), each once with the least of searches, first
// for all modules alike and then cheaper ones for a module alone; the best goes
// on with what is left. The best by emulated step time among those that fit the
// memory limit, boundary tensors included, is returned. At least one schedule a
// setting is made, whatever the budget, until one fits. ResourceExhausted:
// nothing was found to fit; it says which rank lacks how much even with
// everything recomputed, and what schedules, without the tensors that ranks
// receive, would need.
//
// A strategy that starts from others hands out their plan where that is faster
// (planner/step/rival_plans.h).
absl::StatusOr<PlanResult> PlanStep(const PreparedJob& job,
                                    const PlanInput& input);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_STEP_H_
