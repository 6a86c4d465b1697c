#include "planner/orders/dual_pipe_v.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
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

absl::StatusOr<Schedule> Timed(const StageGraph& graph) {
  auto orders = DualPipeVOrders(VirtualPipeline(graph));
  if (!orders.ok()) return orders.status();
  return TimeBaseline(graph, *std::move(orders));
}

// Makespan in ms where an operation of several passes starts when the inputs of
// all are there and gives all outputs at its end.
double PairedMakespan(int32_t p, const GoldenRow& row) {
  using Operation = absl::Span<const PassStep>;
  std::vector<DualPipeVProgram> programs;
  for (int32_t r = 0; r < p; ++r) {
    programs.push_back(DualPipeVRank(r, p, row.microbatches));
  }
  std::vector<std::vector<Operation>> ranks;
  for (DualPipeVProgram& program : programs) {
    ranks.emplace_back();
    program.operations.push_back(program.steps.size());
    for (size_t i = 0; i + 1 < program.operations.size(); ++i) {
      const size_t begin = program.operations[i];
      ranks.back().push_back(
          absl::MakeConstSpan(program.steps)
              .subspan(begin, program.operations[i + 1] - begin));
    }
  }
  const auto position = [&](int32_t r, int32_t chunk) {
    return chunk == 0 ? r : 2 * p - 1 - r;
  };
  std::map<std::tuple<bool, int32_t, int32_t>, double> ends;
  std::vector<double> free_at(static_cast<size_t>(p), 0);
  std::vector<size_t> next(static_cast<size_t>(p), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t r = 0; r < p; ++r) {
      const auto rank = static_cast<size_t>(r);
      while (next[rank] < ranks[rank].size()) {
        const Operation& operation = ranks[rank][next[rank]];
        double start = free_at[rank];
        double length = 0;
        bool ready = true;
        for (const PassStep& step : operation) {
          const bool forward = step.pass == Pass::kForward;
          const double time = forward ? row.costs.forward
                              : step.pass == Pass::kBackward
                                  ? row.costs.backward
                                  : row.costs.weight_grad;
          length += time / 2;
          if (step.pass == Pass::kWeightGrad) continue;
          const int32_t at = position(r, step.chunk);
          const int32_t before = forward ? at - 1 : at + 1;
          if (before < 0 || before >= 2 * p) continue;
          const auto input = ends.find({forward, before, step.microbatch});
          ready = ready && input != ends.end();
          if (!ready) break;
          const bool here = (before < p ? before : 2 * p - 1 - before) == r;
          start =
              std::max(start, input->second + (here ? 0 : row.costs.transfer));
        }
        if (!ready) break;
        free_at[rank] = start + length;
        for (const PassStep& step : operation) {
          if (step.pass == Pass::kWeightGrad) continue;
          ends[{step.pass == Pass::kForward, position(r, step.chunk),
                step.microbatch}] = free_at[rank];
        }
        ++next[rank];
        progress = true;
      }
    }
  }
  for (int32_t r = 0; r < p; ++r) {
    const auto rank = static_cast<size_t>(r);
    EXPECT_EQ(next[rank], ranks[rank].size()) << "rank " << r << " is stuck";
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

TEST(DualPipeVTest, EqualsOtherProgramsWithPairsAsOneOperation) {
  const auto rows = GoldenRows("dualpipe-v");
  EXPECT_EQ(rows.size(), 26u);
  for (const GoldenRow& row : rows) {
    SCOPED_TRACE(row.Text());
    EXPECT_NEAR(PairedMakespan(row.ranks, row), row.makespan_ms,
                1e-6 * row.makespan_ms);
    const StageGraph graph =
        UniformVee(row.ranks, 2, row.microbatches, row.costs);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, Timed(graph));
    EXPECT_EQ(MostActivations(schedule), row.peak);
    // As tasks of their own passes wait for their own inputs only.
    EXPECT_LE(ToMilliseconds(schedule.makespan()), row.makespan_ms);
  }
}

// With equal times and pairs apart it is as fast as ZB-V, for one activation
// more.
TEST(DualPipeVTest, TakesTheClosedFormTime) {
  for (int32_t p = 2; p <= 9; ++p) {
    for (const int32_t m : {2 * p, 2 * p + 1, 4 * p}) {
      SCOPED_TRACE(::testing::Message() << "p " << p << " m " << m);
      ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                           Timed(UniformVee(p, 2, m, {1, 1, 1, 0})));
      EXPECT_NEAR(ToMilliseconds(schedule.makespan()), 3 * m + (p - 1) / 2.0,
                  1e-9);
      EXPECT_EQ(MostActivations(schedule), 2 * p + 1);
    }
  }
}

TEST(DualPipeVTest, OrdersAreLegalForAnyTimesRanksAndMicrobatches) {
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
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, Timed(graph));
    EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
  }
}

TEST(DualPipeVTest, OtherNumbersOfChunksAreRefused) {
  EXPECT_THAT(
      Timed(UniformVee(2, 3, 4, {1, 1, 1, 0})),
      FailsWith(absl::StatusCode::kInvalidArgument,
                HasSubstr("dualpipe-v is for 2 segments; the pipeline has 3")));
}

}  // namespace
}  // namespace pipeloom::planner
