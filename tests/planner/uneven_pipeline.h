// Pipelines with unequal stages, for schedules whose orders follow a rule.
#ifndef PIPELOOM_TESTS_PLANNER_UNEVEN_PIPELINE_H_
#define PIPELOOM_TESTS_PLANNER_UNEVEN_PIPELINE_H_

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "tests/support/random_problem.h"

namespace pipeloom::testing {

// The uniform pipeline with random times (some 0) and activations, in which a
// random number of leading stages has no weight gradient, or no backward, or is
// missing from some microbatches, as frozen and absent modules are.
inline StageGraph UnevenPipeline(uint64_t seed, UniformOptions options) {
  Random random(seed);
  options.delay = Microseconds(double(random.Between(0, 3)));
  const StageGraph full = UniformGraph(options);
  const int32_t stages = options.ranks * options.chunks;
  const auto frozen = random.Between(0, stages - 1);
  const bool gradient_passes = random.Below(2) == 0;
  const auto optional = random.Between(0, stages - 1);
  IdVector<MicrobatchId, bool> lacks(options.microbatches);
  for (const MicrobatchId m : lacks.ids()) lacks[m] = random.Below(3) == 0;
  IdVector<TaskId, TaskId> renamed(full.num_tasks());
  IdVector<TaskId, Task> tasks;
  for (const TaskId t : full.task_ids()) {
    Task task = full.task(t);
    const int32_t stage = task.stage.value();
    if (stage < optional && lacks[task.microbatch]) continue;
    const bool is_frozen = stage < frozen;
    if (is_frozen && task.pass == Pass::kWeightGrad) continue;
    if (is_frozen && !gradient_passes && task.pass == Pass::kBackward) {
      continue;
    }
    task.duration = Microseconds(double(random.Between(0, 9)));
    if (is_frozen) {
      // Held until the last pass that there is.
      const bool last = gradient_passes ? task.pass == Pass::kBackward
                                        : task.pass == Pass::kForward;
      task.free = last ? options.activation : Bytes(0);
    }
    renamed[t] = tasks.push_back(task);
  }
  IdVector<EdgeId, Dependency> edges;
  for (Dependency edge : full.edges()) {
    edge.from = renamed[edge.from];
    edge.to = renamed[edge.to];
    if (!edge.from.is_none() && !edge.to.is_none()) edges.push_back(edge);
  }
  auto graph = StageGraph::Create("uneven", full.ranks(), full.module_names(),
                                  std::move(tasks), std::move(edges));
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_UNEVEN_PIPELINE_H_
