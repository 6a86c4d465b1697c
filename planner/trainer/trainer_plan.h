// One step planned for a trainer, with given recomputation.
#ifndef PIPELOOM_PLANNER_TRAINER_TRAINER_PLAN_H_
#define PIPELOOM_PLANNER_TRAINER_TRAINER_PLAN_H_

#include "absl/status/statusor.h"
#include "ir/plan/trainer.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Plans a step as PlanStep does, within the trainer's limits. `rival`: the
// strategy whose order it has (planner/trainer/rival_order.h), or null for a
// search. With `any_memory` the memory limits do not hold.
absl::StatusOr<PlanResult> PlanForTrainer(const TrainerLimits& trainer,
                                          const RecomputeSetting& setting,
                                          const PreparedJob& job,
                                          const PlanInput& input,
                                          const Strategy* rival = nullptr,
                                          bool any_memory = false);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_TRAINER_PLAN_H_
