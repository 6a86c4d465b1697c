#include "planner/bounds/plan_bound.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/planner/small_step.h"

namespace pipeloom::planner {
namespace {

using testing::WithRoom;

// A limit far above what all activations take adds nothing, and the bound does
// not say that memory gave it.
TEST(PlanBoundTest, NamesMemoryOnlyWhereItBinds) {
  int loads = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const testing::SmallStep problem =
        testing::MakeSmallStep(seed, 32, true, /*waits=*/true);
    const NamedBound bound =
        PlanBound(WithRoom(problem.graph, int64_t{1} << 60), &problem.memory);
    EXPECT_STRNE(bound.source, "area");
    EXPECT_STRNE(bound.source, "memory");
    loads += std::string(bound.source) == "rank load" ? 1 : 0;
  }
  EXPECT_GE(loads, 1);
}

}  // namespace
}  // namespace pipeloom::planner
