#include "planner/core/memory_guard.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "planner/core/flat_graph.h"
#include "tests/support/random_problem.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;

// Runs a random ready task that the guard admits until all have run, and calls
// `check` ahead of each with the ready ones.
template <typename Check>
void RunAtRandom(const FlatGraph& graph, MemoryGuard& guard, Random& random,
                 const Check& check) {
  std::vector<int32_t> missing(static_cast<size_t>(graph.num_tasks));
  std::vector<int32_t> ready;
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    missing[t] = graph.pred_offset[t + 1] - graph.pred_offset[t];
    if (missing[t] == 0) ready.push_back(t);
  }
  while (!ready.empty()) {
    check(ready);
    std::vector<size_t> admitted;
    for (size_t i = 0; i < ready.size(); ++i) {
      if (guard.Admits(ready[i])) admitted.push_back(i);
    }
    ASSERT_FALSE(admitted.empty());
    const size_t i =
        admitted[random.Below(static_cast<int64_t>(admitted.size()))];
    const int32_t t = ready[i];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(i));
    guard.Start(t);
    for (int32_t e = graph.succ_offset[t]; e < graph.succ_offset[t + 1]; ++e) {
      if (--missing[graph.succ[e]] == 0) ready.push_back(graph.succ[e]);
    }
  }
}

RandomGraphOptions Limited() {
  return {.max_ranks = 4,
          .max_segments = 4,
          .max_microbatches = 8,
          .with_memory_limits = true};
}

TEST(MemoryGuardTest, NeverGetsStuckAndChecksFreshGroupsAlike) {
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FlatGraph graph(RandomGraph(seed, Limited()));
    MemoryGuard guard(graph);
    if (guard.shortage().task >= 0) continue;
    Random random(seed);
    for (const double reserve : {0.0, 0.3, 1.0}) {
      guard.Reset({}, reserve);
      RunAtRandom(graph, guard, random, [&](const std::vector<int32_t>& ready) {
        for (const int32_t t : ready) {
          if (!guard.Binds(graph.rank[t]) || guard.IsStarted(t)) continue;
          const bool admitted = guard.Admits(t);
          refused += admitted ? 0 : 1;
          ASSERT_EQ(guard.AdmitsFresh(t, guard.RoomForFresh(graph.rank[t])),
                    admitted);
        }
      });
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace pipeloom::planner
