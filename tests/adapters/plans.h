// Plans out of graphs and orders, and what of dualpipe-v is overlapped.
#ifndef PIPELOOM_TESTS_ADAPTERS_PLANS_H_
#define PIPELOOM_TESTS_ADAPTERS_PLANS_H_

#include <map>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/plan_actions.h"
#include "base/status_macros.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "planner/lower/lower_plan.h"
#include "planner/orders/dual_pipe_v.h"

namespace pipeloom::testing {

inline absl::StatusOr<ExecutionPlan> PlanOf(const StageGraph& graph,
                                            RankOrders orders) {
  PIPELOOM_ASSIGN_OR_RETURN(const Schedule schedule,
                            TimeSchedule(graph, std::move(orders)));
  return planner::LowerPlan(graph, schedule);
}

inline RankOrders OrdersOf(const ExecutionPlan& plan) {
  RankOrders orders(plan.graph.num_ranks());
  for (const RankId r : plan.graph.rank_ids()) {
    for (const Instruction& i : plan.programs[r]) {
      if (const auto* compute = std::get_if<Compute>(&i)) {
        orders[r].push_back(compute->task);
      }
    }
  }
  return orders;
}

// Which passes of dualpipe-v are one operation, on one stage a rank and
// direction.
inline void FindDualPipeVOperations(const StageGraph& graph,
                                    int32_t microbatches,
                                    adapters::ActionOptions* options) {
  std::map<std::tuple<Pass, int32_t, int32_t>, TaskId> tasks;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    tasks[{task.pass, task.stage.value(), task.microbatch.value()}] = t;
  }
  const int32_t p = graph.num_ranks();
  for (int32_t r = 0; r < p; ++r) {
    auto program = planner::DualPipeVRank(r, p, microbatches);
    program.operations.push_back(program.steps.size());
    const auto task = [&](size_t i) {
      const planner::PassStep& step = program.steps[i];
      return tasks.at(
          {step.pass, step.chunk == 0 ? r : 2 * p - 1 - r, step.microbatch});
    };
    for (size_t i = 0; i + 1 < program.operations.size(); ++i) {
      const size_t begin = program.operations[i];
      if (program.operations[i + 1] - begin < 2) continue;
      if (program.steps[begin].pass == Pass::kForward) {
        options->pairs.push_back({task(begin), task(begin + 1)});
      } else {
        options->whole.push_back(task(begin));
      }
    }
  }
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ADAPTERS_PLANS_H_
