// What planning a step takes and gives (planner/step/plan_step.h).
#ifndef PIPELOOM_PLANNER_STEP_STEP_TYPES_H_
#define PIPELOOM_PLANNER_STEP_STEP_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/step_trace.h"
#include "partition/batching/batch_split.h"
#include "planner/core/search_budget.h"
#include "planner/search/robust_search.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// A job made ready for planning with one strategy: its partition is fixed.
struct PreparedJob {
  const Strategy* strategy = nullptr;
  const emulator::StageCostModel* costs = nullptr;
  Partition partition{};
};

struct PlanInput {
  const partition::PackedStep* packed = nullptr;
  int64_t step = 0;
  int32_t replica = 0;
  uint64_t seed = 1;
  SearchBudget budget{};
  // Set: of the schedules found, the one with the best 90th percentile under
  // these disturbances is taken, for which 30 % of the budget are kept.
  std::optional<Disturbances> robust{};
};

// The step times of the plan and of the one that is best undisturbed.
struct RobustReport {
  RobustTimes chosen{};
  RobustTimes nominal{};
};

struct PlanResult {
  ExecutionPlan plan{};   // Passes ValidateExecutionPlan.
  StepTrace predicted{};  // Of EmulateStep.
  Microbatches microbatches{};
  MemoryPolicy memory{};  // By stage pair.
  // Of the step within its limits; for strategies that choose memory, of any
  // of their choices (planner/bounds/plan_bound.h), else for the choice made.
  Duration lower_bound{};
  const char* bound_source = "chain";  // NamedBound's.
  int64_t evaluations = 0;
  bool proven_optimal = false;
  std::optional<RobustReport> robust{};  // If it was asked for.
  double gap_ratio() const;
  double bubble_ratio() const;
  double epilogue_ratio() const;
  double mfu() const;
  std::vector<Bytes> peak_bytes() const;  // Per rank, of one GPU.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_STEP_TYPES_H_
