// Plans of random jobs within the limits of a trainer.
#ifndef PIPELOOM_TESTS_ADAPTERS_TRAINER_PLANS_H_
#define PIPELOOM_TESTS_ADAPTERS_TRAINER_PLANS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/trainer.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"
#include "planner/trainer/trainer_strategy.h"
#include "tests/planner/random_job.h"

namespace pipeloom::testing {

inline constexpr RandomJobOptions kSmallTrainerJob{
    .most_microbatches = 8, .most_ranks = 4, .most_layers = 10};

struct TrainerPlanned {
  planner::PlanResult result{};
  Partition partition{};
  RecomputeSetting recompute{};
};

// Plans the first step, as `pipeloom plan --for` does, or with `rival` as
// `pipeloom compare --for` does.
inline absl::StatusOr<TrainerPlanned> PlanForTrainer(
    const TrainerLimits& trainer, const RandomJobCase& made,
    int64_t evaluations,
    std::unique_ptr<const planner::Strategy> rival = nullptr) {
  const emulator::StageCostModel costs(made.job);
  planner::TrainerStrategy strategy(trainer, std::move(rival));
  PIPELOOM_ASSIGN_OR_RETURN(planner::PreparedJob job,
                            planner::PrepareJob(strategy, costs, made.batch));
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(made.job, made.batch, 0));
  PIPELOOM_RETURN_IF_ERROR(
      strategy.FixRecompute(job, {&packed, 1}, /*replicas=*/1, {}));
  planner::PlanInput input{.packed = &packed};
  input.budget.max_evaluations = evaluations;
  TrainerPlanned planned;
  PIPELOOM_ASSIGN_OR_RETURN(planned.result, planner::PlanStep(job, input));
  planned.partition = job.partition;
  planned.recompute = *strategy.recompute();
  return planned;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ADAPTERS_TRAINER_PLANS_H_
