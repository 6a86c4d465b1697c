// Bounds against the brute-force oracle on random problems.
#ifndef PIPELOOM_TESTS_PLANNER_BOUND_CHECKS_H_
#define PIPELOOM_TESTS_PLANNER_BOUND_CHECKS_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "planner/core/flat_graph.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/branching_problems.h"
#include "tests/planner/small_problems.h"

namespace pipeloom::testing {

// `bound` of a FlatGraph, in ns, is not above the shortest step of 500 random
// pipelines ...
template <typename Bound>
void ExpectNeverAboveOptimumOfPipelines(const Bound& bound) {
  int problems = 0;
  for (uint64_t seed = 0; problems < 500; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    const auto optimum = BruteForceStepTime(*graph);
    if (!optimum.has_value()) continue;
    EXPECT_LE(bound(planner::FlatGraph(*graph)), optimum->count())
        << "seed " << seed;
  }
}

// ... and of 300 with parallel encoders.
template <typename Bound>
void ExpectNeverAboveOptimumOfParallelEncoders(const Bound& bound) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const StageGraph graph = BranchingProblem(seed, 12);
    const auto optimum = BruteForceStepTime(graph);
    if (!optimum.has_value()) continue;
    EXPECT_LE(bound(planner::FlatGraph(graph)), optimum->count())
        << "seed " << seed;
  }
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_BOUND_CHECKS_H_
