// The entry point of planning: turns one replica's batch of one step into a
// checked plan.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_STEP_H_
#define PIPELOOM_PLANNER_STEP_PLAN_STEP_H_

#include <stop_token>

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// Makes and validates the strategy's partition for the job, judged by `sample`.
// Keeps pointers to `strategy` and `costs`. Cancelled: a stop was requested.
absl::StatusOr<PreparedJob> PrepareJob(const Strategy& strategy,
                                       const emulator::StageCostModel& costs,
                                       const BatchMetadata& sample,
                                       const std::stop_token& stop = {});

// Plans one step: splits the batch, prices the stages, searches, lowers,
// emulates and checks.
//
// All strategies have the same memory tools
// (partition/graph/memory_candidates.h). Strategies that do not choose by stage
// pair themselves get the settings that an engineer would try
// (planner/memory/memory_rules.h): each setting gets one smallest possible
// search, first settings alike for all modules, then cheaper ones for single
// modules; the best goes on with the rest of the budget. Returns the plan with
// the least emulated step time among those that fit the memory limit, boundary
// tensors included. A strategy that starts from others returns the plan of
// another where that is faster (planner/step/rival_plans.h).
//
// More than two workers are divided into teams of two. Each team plans the step
// independently of the others: it has its own seed, and its share of the
// evaluations and of the threads. The best plan is returned. Under a deadline
// every team has at least two threads: if there are too few for that, teams are
// larger. Strategies that find the same with any seed, and robust choices, have
// one team.
//
// Whatever the budget, at least one schedule is made for each setting until one
// fits. Returns ResourceExhausted if nothing was found to fit; the message says
// which rank lacks how much even with everything recomputed, and what schedules
// would need without the tensors that ranks receive.
absl::StatusOr<PlanResult> PlanStep(const PreparedJob& job,
                                    const PlanInput& input);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_STEP_H_
