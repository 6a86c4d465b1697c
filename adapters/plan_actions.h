// A plan as a table of actions, for formats that know stages and microbatches
// only.
#ifndef PIPELOOM_ADAPTERS_PLAN_ACTIONS_H_
#define PIPELOOM_ADAPTERS_PLAN_ACTIONS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/action.h"
#include "adapters/action_table.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"

namespace pipeloom::adapters {

struct ActionOptions {
  // With sends and receives, by AddTransfers; else passes alone.
  bool transfers = false;
  // Leave out recomputation and offloading, which these formats cannot say;
  // the trainer must see to memory itself. Off, a plan that needs them is
  // refused.
  bool drop_memory = false;
  // Recomputation is set at the trainer's launch: it is no part of the format,
  // and nothing is said of it.
  bool recompute_at_launch = false;
  // Forward tasks and the backward that each is overlapped with, on its rank
  // and right behind it; for formats with pairs. Not with `transfers`.
  std::vector<std::pair<TaskId, TaskId>> pairs{};
  // Backward tasks whose weight gradient, right behind, is one operation with
  // them. That of a pair's backward is.
  std::vector<TaskId> whole{};
  // The name of the format, for messages.
  std::string format = "this format";
};

struct PlanActions {
  ActionTable table{};
  TableShape shape{};
  // The plan's microbatch that each microbatch of the table is: they are
  // numbered in the order in which stages go forward through them.
  std::vector<int32_t> microbatches{};
  // Lines about what the format does not carry and the trainer must know.
  std::vector<std::string> notes{};
};

// Returns the plan's actions. FailedPrecondition names what has no counterpart:
// a stage that skips a microbatch (a module without work there), several
// sub-microbatches of one, modules that are no chain (two encoders side by
// side), a missing backward (frozen modules), stages that go forward in
// different orders, recomputation, offloading. REQUIRES: ValidateExecutionPlan
// accepts the plan. O(tasks + edges).
absl::StatusOr<PlanActions> ActionsOf(const ExecutionPlan& plan,
                                      const ActionOptions& options = {});

// Durations of the actions of a table that was read: of one rank and
// microbatch, for all its stages together, which share them equally.
struct ActionTimes {
  Duration forward = Milliseconds(1);
  Duration backward_input = Milliseconds(1);
  Duration weight_grad = Milliseconds(1);
  Duration transfer{};        // Between ranks.
  Bytes activation{1 << 20};  // Kept by a stage from forward to backward.
};

struct ImportedSchedule {
  StageGraph graph{};
  RankOrders order{};
};

// Returns the table as a problem and its answer: TimeSchedule and LowerPlan
// make a plan of it. Both passes of an overlapped pair begin when the inputs of
// both are there and give their outputs at the end of both, by order-only
// dependencies. Transfers of the table are checked and then made anew. Errors
// of CheckTable.
absl::StatusOr<ImportedSchedule> ScheduleOf(const ActionTable& table,
                                            const ActionTimes& times,
                                            const std::string& name);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_PLAN_ACTIONS_H_
