#include "planner/orders/v_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tests/planner/golden_schedules.h"
#include "tests/planner/uneven_pipeline.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::GoldenRow;
using ::pipeloom::testing::GoldenRows;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::MostActivations;
using ::pipeloom::testing::UnevenPipeline;
using ::pipeloom::testing::UniformVee;
using ::testing::HasSubstr;

absl::StatusOr<Schedule> Timed(VMemory memory, const StageGraph& graph) {
  auto orders = VScheduleOrders(memory, VirtualPipeline(graph));
  if (!orders.ok()) return orders.status();
  return TimeBaseline(graph, *std::move(orders));
}

TEST(VScheduleTest, EqualsOtherPrograms) {
  for (const VMemory memory : {VMemory::kHalf, VMemory::kMin}) {
    const auto rows = GoldenRows(memory == VMemory::kHalf ? "v-half" : "v-min");
    EXPECT_EQ(rows.size(), 30u);
    for (const GoldenRow& row : rows) {
      SCOPED_TRACE(row.Text());
      const StageGraph graph =
          UniformVee(row.ranks, 2, row.microbatches, row.costs);
      ASSERT_OK_AND_ASSIGN(const Schedule schedule, Timed(memory, graph));
      EXPECT_NEAR(ToMilliseconds(schedule.makespan()), row.makespan_ms,
                  1e-6 * row.makespan_ms);
      EXPECT_EQ(MostActivations(schedule), row.peak);
    }
  }
}

// 1F1B holds 2 p activations of a chunk; a half and a third of that, and one
// microbatch's two more. Fewer microbatches hold no more than all of them.
TEST(VScheduleTest, HoldsAHalfAndAThirdOfTheActivationsOf1F1B) {
  for (int32_t p = 1; p <= 12; ++p) {
    for (const int32_t m : {1, 2, p, 2 * p, 3 * p + 2}) {
      SCOPED_TRACE(::testing::Message() << "p " << p << " m " << m);
      const StageGraph graph = UniformVee(p, 2, m, {1, 1, 1, 0});
      ASSERT_OK_AND_ASSIGN(const Schedule half, Timed(VMemory::kHalf, graph));
      ASSERT_OK_AND_ASSIGN(const Schedule min, Timed(VMemory::kMin, graph));
      const int64_t half_bound = 2 * (p / 2 + 1);
      const int64_t min_bound = 2 * ((p + 1) / 3 + 1);
      EXPECT_LE(MostActivations(half), std::min<int64_t>(half_bound, 2 * m));
      EXPECT_LE(MostActivations(min), std::min<int64_t>(min_bound, 2 * m));
      if (m >= 2 * p) {
        EXPECT_EQ(MostActivations(half), half_bound);
        EXPECT_EQ(MostActivations(min), min_bound);
      }
    }
  }
}

// In the steady state of equal times no rank waits: one more microbatch takes
// one microbatch's time.
TEST(VScheduleTest, WaitsDoNotGrowWithMicrobatches) {
  for (const VMemory memory : {VMemory::kHalf, VMemory::kMin}) {
    for (int32_t p = 1; p <= 8; ++p) {
      SCOPED_TRACE(p);
      Duration wait = kZero;
      for (const int32_t m : {3 * p, 3 * p + 5, 6 * p}) {
        ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                             Timed(memory, UniformVee(p, 2, m, {1, 1, 1, 0})));
        const Duration over = schedule.makespan() - Milliseconds(3) * m;
        if (wait == kZero) wait = over;
        EXPECT_EQ(over, wait) << m;
      }
    }
  }
}

TEST(VScheduleTest, OrdersAreLegalForAnyTimesRanksAndMicrobatches) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const auto p = static_cast<int32_t>(random.Between(1, 9));
    const auto m = static_cast<int32_t>(random.Between(1, 20));
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << " p " << p << " m " << m);
    const StageGraph graph =
        UnevenPipeline(seed, {.ranks = p,
                              .chunks = 2,
                              .microbatches = m,
                              .vee = true,
                              .split_backward = random.Below(4) > 0});
    for (const VMemory memory : {VMemory::kHalf, VMemory::kMin}) {
      ASSERT_OK_AND_ASSIGN(const Schedule schedule, Timed(memory, graph));
      EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
    }
  }
}

TEST(VScheduleTest, OtherNumbersOfChunksAreRefused) {
  EXPECT_THAT(
      Timed(VMemory::kMin, UniformVee(2, 3, 4, {1, 1, 1, 0})),
      FailsWith(absl::StatusCode::kInvalidArgument,
                HasSubstr("v-min is for 2 segments; the pipeline has 3")));
}

}  // namespace
}  // namespace pipeloom::planner
