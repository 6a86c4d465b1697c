// One step planned for a trainer, with given recomputation.
#ifndef PIPELOOM_PLANNER_TRAINER_TRAINER_PLAN_H_
#define PIPELOOM_PLANNER_TRAINER_TRAINER_PLAN_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "emulator/stage/step_update.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/trainer.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// A step as the trainer runs it: a task for each pass of its stages on each
// microbatch, with work or without.
struct TrainerGraph {
  StageGraph graph{};
  Flops model_flops{};
  std::shared_ptr<const emulator::StepUpdate> update{};  // With its stages.
};
absl::StatusOr<TrainerGraph> MakeTrainerGraph(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, bool split_backward,
    const MemoryPolicy& memory);

// Gives microbatches without work in a module with a loss a share of nothing.
// Where that module's layers are in no stage of its own, shares are not known:
// there are none then.
void FitLossToTrainer(ExecutionPlan* plan);

// Plans a step as PlanStep does, within the trainer's limits. `rival`: the
// strategy whose order it has (planner/trainer/rival_order.h), or null for a
// search. `limit`: of memory, instead of the job's; 0: none.
absl::StatusOr<PlanResult> PlanForTrainer(const TrainerLimits& trainer,
                                          const RecomputeSetting& setting,
                                          const PreparedJob& job,
                                          const PlanInput& input,
                                          const Strategy* rival = nullptr,
                                          std::optional<Bytes> limit = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_TRAINER_PLAN_H_
