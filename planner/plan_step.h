// The front door: one replica's batch of one step -> a checked plan.
#ifndef PIPELOOM_PLANNER_PLAN_STEP_H_
#define PIPELOOM_PLANNER_PLAN_STEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/stage_cost.h"
#include "ir/execution_plan.h"
#include "ir/memory_policy.h"
#include "ir/microbatches.h"
#include "ir/partition.h"
#include "ir/step_trace.h"
#include "partition/batch_split.h"
#include "planner/robust_search.h"
#include "planner/search_budget.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// A job made ready for planning with one strategy: its partition is fixed.
struct PreparedJob {
  const Strategy* strategy = nullptr;
  const emulator::StageCostModel* costs = nullptr;
  Partition partition{};
};
absl::StatusOr<PreparedJob> PrepareJob(const Strategy& strategy,
                                       const emulator::StageCostModel& costs,
                                       const BatchMetadata& sample);

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
  // of their choices (planner/plan_bound.h), else for the choice made.
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

// Splits the batch, prices the stages, searches, lowers, emulates and checks.
// All strategies have the same memory tools (partition/memory_candidates.h).
// Those that do not choose by stage pair themselves get the settings that an
// engineer would try (planner/memory_rules.h), each once with the least of
// searches, first for all modules alike and then cheaper ones for a module
// alone; the best goes on with what is left. The best by emulated step time
// among those that fit the memory limit, boundary tensors included, is
// returned. At least one schedule a setting is made, whatever the budget, until
// one fits. ResourceExhausted: nothing was found to fit; it says which rank
// lacks how much even with everything recomputed, and what schedules, without
// the tensors that ranks receive, would need.
absl::StatusOr<PlanResult> PlanStep(const PreparedJob& job,
                                    const PlanInput& input);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PLAN_STEP_H_
