// Changes of a plan, each of one kind, for tests of what checks plans.
#ifndef PIPELOOM_TESTS_PLANNER_STEP_PLAN_MUTATIONS_H_
#define PIPELOOM_TESTS_PLANNER_STEP_PLAN_MUTATIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/random.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::testing {

// A plan in parts that can be changed one by one.
struct PlanParts {
  explicit PlanParts(const ExecutionPlan& of)
      : plan(of),
        ranks(of.graph.ranks()),
        tasks(of.graph.tasks().items()),
        edges(of.graph.edges().items()) {}

  // Fails if the parts are no graph.
  absl::StatusOr<ExecutionPlan> Build() const;

  Task& At(TaskId t) { return tasks[static_cast<size_t>(t.value())]; }
  Dependency& At(EdgeId e) { return edges[static_cast<size_t>(e.value())]; }
  std::vector<Instruction>& ProgramOf(TaskId t) {
    return plan.programs[At(t).rank];
  }

  // Drop a task with its edges, or an edge, and all instructions of them.
  void Drop(TaskId dropped);
  void Drop(EdgeId dropped);

  ExecutionPlan plan;
  IdVector<RankId, RankSpec> ranks;
  std::vector<Task> tasks;
  std::vector<Dependency> edges;

 private:
  void Renumber(TaskId dropped, const std::vector<int32_t>& edge_now);
};

// Returns an index below `size`, which is > 0.
inline size_t Index(Random& random, size_t size) {
  return static_cast<size_t>(random.Below(static_cast<int64_t>(size)));
}

// Each change returns false if the plan has nothing to change in this way.
using Change = std::function<bool(PlanParts&, Random&)>;

// Who has to refuse a change.
enum class By {
  kPlan,  // ValidateExecutionPlan.
  kJob,   // CheckPlan, which knows the job and the batch, at the latest.
  kTime,  // Nobody, if the changed plan runs as predicted.
};

// A kind of change.
struct Mutation {
  const char* name;
  Change apply;
  By refused = By::kPlan;
};

// Returns all kinds.
const std::vector<Mutation>& Mutations();
// Returns those of loss shares and padded shapes.
const std::vector<Mutation>& SubMicrobatchMutations();

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_STEP_PLAN_MUTATIONS_H_
