// Random problems that the brute-force oracle can solve.
#ifndef PIPELOOM_TESTS_PLANNER_SMALL_PROBLEMS_H_
#define PIPELOOM_TESTS_PLANNER_SMALL_PROBLEMS_H_

#include <cstdint>
#include <optional>

#include "tests/support/random_problem.h"

namespace pipeloom::testing {

// The seed's problem, every second with memory limits and every third with
// epilogues; nullopt when it has more than `max_tasks` tasks.
inline std::optional<StageGraph> SmallProblem(uint64_t seed,
                                              int32_t max_tasks = 12) {
  RandomGraphOptions options;
  options.max_microbatches = 4;
  options.with_memory_limits = seed % 2 == 0;
  options.with_epilogues = seed % 3 == 0;
  StageGraph graph = RandomGraph(seed, options);
  if (graph.num_tasks() > max_tasks) return std::nullopt;
  return graph;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_SMALL_PROBLEMS_H_
