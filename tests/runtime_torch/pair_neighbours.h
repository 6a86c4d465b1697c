// Plans in which forwards and backwards that are neighbours run together, for
// tests that execute them.
#ifndef PIPELOOM_TESTS_RUNTIME_TORCH_PAIR_NEIGHBOURS_H_
#define PIPELOOM_TESTS_RUNTIME_TORCH_PAIR_NEIGHBOURS_H_

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "planner/lower/lower_plan.h"
#include "planner/passes/pair_forwards.h"

namespace pipeloom::testing {

// Returns the plan with two of three of the pairs that its order allows; each
// lasts as long as both passes one after the other. Passes whose activations
// move to the host, and backwards that weight gradients overlap, stay alone.
inline absl::StatusOr<ExecutionPlan> PairNeighbours(const ExecutionPlan& plan,
                                                    Random& random) {
  const StageGraph& graph = plan.graph;
  RankOrders orders(graph.num_ranks());
  std::vector<planner::HostCopy> copies;
  std::set<TaskId> alone;
  for (const RankId r : plan.programs.ids()) {
    for (const Instruction& i : plan.programs[r]) {
      if (const auto* compute = std::get_if<Compute>(&i)) {
        orders[r].push_back(compute->task);
      } else if (const auto* copy = std::get_if<Offload>(&i)) {
        copies.push_back({.task = copy->task, .payload = copy->payload});
        alone.insert(copy->task);
        for (const EdgeId e : graph.outgoing(copy->task)) {
          alone.insert(graph.edge(e).to);
        }
      }
    }
  }
  for (const Dependency& d : graph.edges()) {
    if (d.delay > kZero && graph.task(d.from).rank == graph.task(d.to).rank) {
      alone.insert(d.to);
    }
  }
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (task.overlaps.is_none()) continue;
    alone.insert(t);
    alone.insert(task.overlaps);
  }
  StageGraph best = graph;
  PIPELOOM_ASSIGN_OR_RETURN(Schedule schedule, TimeSchedule(graph, orders));
  std::vector<planner::ForwardPair> pairs;
  for (const RankId r : graph.rank_ids()) {
    for (size_t k = 0; k + 1 < orders[r].size(); ++k) {
      const TaskId one = orders[r][k];
      const TaskId other = orders[r][k + 1];
      const Task& a = graph.task(one);
      const Task& b = graph.task(other);
      if (a.pass == b.pass || a.pass == Pass::kWeightGrad ||
          b.pass == Pass::kWeightGrad || a.microbatch == b.microbatch ||
          alone.contains(one) || alone.contains(other) ||
          random.Below(3) == 0) {
        continue;
      }
      std::vector<planner::ForwardPair> with = pairs;
      with.push_back({.first = std::max(one, other),
                      .second = std::min(one, other),
                      .together = a.duration + b.duration});
      RankOrders paired = orders;
      paired[r][k] = with.back().first;
      paired[r][k + 1] = with.back().second;
      PIPELOOM_ASSIGN_OR_RETURN(StageGraph with_pairs,
                                planner::ApplyForwardPairs(graph, with));
      absl::StatusOr<Schedule> timed = TimeSchedule(with_pairs, paired);
      if (!timed.ok()) continue;  // The two would wait for each other.
      best = std::move(with_pairs);
      schedule = *std::move(timed);
      orders = std::move(paired);
      pairs = std::move(with);
      ++k;
    }
  }
  if (pairs.empty()) return plan;
  PIPELOOM_ASSIGN_OR_RETURN(
      const ExecutionPlan lowered,
      planner::LowerPlan(std::move(best), schedule, copies));
  ExecutionPlan result = plan;
  result.graph = lowered.graph;
  result.programs = lowered.programs;
  result.predicted_step_time = lowered.predicted_step_time;
  result.lower_bound = kZero;
  return result;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_RUNTIME_TORCH_PAIR_NEIGHBOURS_H_
