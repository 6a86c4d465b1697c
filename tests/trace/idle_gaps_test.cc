#include "trace/idle_gaps.h"

#include "gtest/gtest.h"

namespace pipeloom::trace {
namespace {

// Task i of rank 0 starts at 100 i and takes 90 to 95 ns; its tensor takes 40
// ns to rank 1, which is idle until then.
TEST(IdleGapsTest, AHandoverIsTheMedianGapAndALinkWhatReceiversWaitedFor) {
  constexpr int32_t kTasks = 6;
  std::vector<MeasuredTask> tasks;
  std::vector<TraceInput> inputs;
  for (int32_t i = 0; i < kTasks; ++i) {
    tasks.push_back({RankId(0), 100 * i, 100 * i + 90 + i});
  }
  for (int32_t i = 0; i < kTasks; ++i) {
    const int64_t sent = tasks[static_cast<size_t>(i)].end;
    tasks.push_back({RankId(1), sent + 40, sent + 60});
    inputs.push_back({i, kTasks + i});
  }
  const IdleGaps gaps = MeasureIdleGaps(2, tasks, inputs);
  EXPECT_EQ(gaps.handover[RankId(0)], Duration(8));  // The median of 10 to 6.
  EXPECT_EQ(gaps.handover[RankId(1)], kZero);
  EXPECT_EQ(gaps.links.at({RankId(0), RankId(1)}), Duration(32));
}

TEST(IdleGapsTest, ThreeGapsAreTooFewAndAReceiverThatIsBusyWaitsForNoLink) {
  // Rank 1 is busy until 30, long after the tensor of rank 0 came.
  const IdleGaps gaps = MeasureIdleGaps(2,
                                        {{RankId(0), 0, 10},
                                         {RankId(0), 12, 20},
                                         {RankId(0), 22, 30},
                                         {RankId(0), 32, 40},
                                         {RankId(1), 0, 30},
                                         {RankId(1), 35, 40}},
                                        {{0, 5}});
  EXPECT_EQ(gaps.handover[RankId(0)], kZero);
  EXPECT_EQ(gaps.links.at({RankId(0), RankId(1)}), Duration(25));
}

}  // namespace
}  // namespace pipeloom::trace
