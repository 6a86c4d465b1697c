// Random pipelines whose microbatches differ much, for the bounds that look at
// microbatches on the way from rank to rank.
#ifndef PIPELOOM_TESTS_PLANNER_RANDOM_PIPELINES_H_
#define PIPELOOM_TESTS_PLANNER_RANDOM_PIPELINES_H_

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::testing {

// Forwards over all ranks, `rounds` times, and, if `backward`, back again;
// times by microbatch, and by rank too if `unequal`; transfers if `delays`. The
// first microbatch's times are `dominant` times as long.
inline StageGraph RandomPipeline(uint64_t seed, int32_t ranks,
                                 int32_t microbatches, bool backward,
                                 bool unequal, bool delays,
                                 int64_t dominant = 1, int32_t rounds = 1) {
  Random random(seed);
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int32_t m = 0; m < microbatches; ++m) {
    const int64_t scale = random.Between(0, 12) * (m == 0 ? dominant : 1);
    const int32_t stages = ranks * rounds;
    const int32_t passes = backward ? 2 * stages : stages;
    for (int32_t i = 0; i < passes; ++i) {
      const int32_t rank = (i < stages ? i : 2 * stages - 1 - i) % ranks;
      Task task{.rank = RankId(rank),
                .module = ModuleId(0),
                .stage = StageId(i),
                .microbatch = MicrobatchId(m)};
      task.pass = i < stages ? Pass::kForward : Pass::kBackward;
      task.duration = Microseconds(static_cast<double>(
          unequal ? random.Between(0, scale) : scale * (i < stages ? 1 : 2)));
      const TaskId id = tasks.push_back(task);
      if (i == 0) continue;
      edges.push_back({.from = TaskId(id.value() - 1),
                       .to = id,
                       .delay = delays
                                    ? Microseconds(double(random.Between(0, 6)))
                                    : kZero});
    }
  }
  auto graph = StageGraph::Create("pipeline", IdVector<RankId, RankSpec>(ranks),
                                  {""}, std::move(tasks), std::move(edges));
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_RANDOM_PIPELINES_H_
