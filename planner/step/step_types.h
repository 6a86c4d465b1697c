// Inputs and results of planning a step (planner/step/plan_step.h).
#ifndef PIPELOOM_PLANNER_STEP_STEP_TYPES_H_
#define PIPELOOM_PLANNER_STEP_STEP_TYPES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "emulator/stage/step_update.h"
#include "ir/plan/carried_step.h"
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

// One replica's step, and how it is planned.
struct PlanInput {
  const partition::PackedStep* packed = nullptr;
  int64_t step = 0;
  int32_t replica = 0;
  uint64_t seed = 1;
  SearchBudget budget{};
  // If set, the schedule with the best 90th percentile of step times under
  // these disturbances is chosen among those found; 30 % of the budget is kept
  // for it.
  std::optional<Disturbances> robust{};
  // Carried over from other steps of the job, for strategies that start from
  // others: the search goes on from the most similar one. The plan depends on
  // them.
  std::vector<std::shared_ptr<const CarriedStep>> carried{};
  // Computes PlanResult::lower_bound; otherwise it is 0. An error that nothing
  // fits then says for which limit a plan was found.
  bool needs_bound = true;
  // Returns ResourceExhausted once the step is built if it is large, unless the
  // time is nearly over: the search of another strategy needs both threads.
  bool only_if_small = false;
  // Returns ResourceExhausted once the step is built unless some rank has room
  // for few microbatches (planner/memory/memory_levels.h, MemoryIsTight).
  bool only_if_tight = false;
  // Whether forwards may run together with backwards, if the trainer can. Short
  // searches that judge partitions do without: what pairs gain depends on the
  // order that the search ends with.
  bool pairs_forwards = true;
};

// Step times under disturbances of the chosen plan and of the plan that is best
// without disturbances.
struct RobustReport {
  RobustTimes chosen{};
  RobustTimes nominal{};
};

// A checked plan and figures of it.
struct PlanResult {
  ExecutionPlan plan{};   // Passes ValidateExecutionPlan.
  StepTrace predicted{};  // The result of EmulateStep.
  Microbatches microbatches{};
  MemoryPolicy memory{};  // Indexed by stage pair.
  // No schedule of the step within its limits is faster: with any memory choice
  // for strategies that choose memory (planner/bounds/plan_bound.h), otherwise
  // with the choice made.
  Duration lower_bound{};
  const char* bound_source = "chain";  // NamedBound::source.
  int64_t evaluations = 0;
  bool proven_optimal = false;
  // The time that the updates of the step's ranks add to it.
  std::shared_ptr<const emulator::StepUpdate> update{};
  // For the searches of the job's other steps; null if only one evaluation was
  // allowed.
  std::shared_ptr<const CarriedStep> carried{};
  std::optional<RobustReport> robust{};  // Set if the input asked for it.
  // Returns the gap, bubble and epilogue as shares (docs/glossary.md), and the
  // MFU as one of the bf16 peak.
  double gap_ratio() const;
  double bubble_ratio() const;
  double epilogue_ratio() const;
  double mfu() const;
  std::vector<Bytes> peak_bytes() const;  // Indexed by rank; of one GPU.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_STEP_TYPES_H_
