#include "ir/plan/step_trace.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom {
namespace {

using ::testing::ElementsAre;

SimTime At(double microseconds) {
  return kStepStart + Microseconds(microseconds);
}

Span TaskSpan(int32_t rank, int32_t task, double start, double end) {
  return {.rank = RankId(rank),
          .task = TaskId(task),
          .start = At(start),
          .end = At(end)};
}

TEST(MemoryPeaksTest, SaysHowMuchWhenAndOfWhat) {
  StepTrace trace{.num_ranks = 2};
  const auto step = [&](int32_t rank, double at, MemoryItem item,
                        int64_t delta) {
    trace.memory.push_back({.rank = RankId(rank),
                            .at = At(at),
                            .item = item,
                            .delta = Bytes(delta)});
  };
  step(0, 0, MemoryItem::kWeights, 100);
  step(0, 1, MemoryItem::kActivations, 20);
  step(0, 2, MemoryItem::kReceived, 5);
  step(0, 3, MemoryItem::kActivations, -20);
  step(0, 4, MemoryItem::kActivations, 20);  // As high again: the first counts.
  step(1, 7, MemoryItem::kOverhead, 3);
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(trace);
  const MemoryPeak& first = peaks[RankId(0)];
  EXPECT_EQ(first.total, Bytes(125));
  EXPECT_EQ(first.at, At(2));
  EXPECT_THAT(first.items, ElementsAre(Bytes(100), Bytes(0), Bytes(0), Bytes(0),
                                       Bytes(20), Bytes(5), Bytes(0)));
  EXPECT_EQ(peaks[RankId(1)].total, Bytes(3));
  EXPECT_EQ(peaks[RankId(1)].at, At(7));
}

TEST(MemoryPeaksTest, ARankWithoutStepsHasNone) {
  EXPECT_THAT(MemoryPeaks({.num_ranks = 1}), ElementsAre(MemoryPeak{}));
}

TEST(MemoryItemTest, EveryItemHasAName) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumMemoryItems; ++i) {
    names.push_back(MemoryItemName(static_cast<MemoryItem>(i)));
  }
  EXPECT_THAT(names,
              ElementsAre("weights", "gradients", "optimizer", "overhead",
                          "activations", "received", "sent"));
}

TEST(TaskOrdersTest, OnlyTasksCount) {
  StepTrace trace{.num_ranks = 2};
  trace.spans = {TaskSpan(0, 2, 0, 1), TaskSpan(0, 1, 1, 2)};
  trace.spans.push_back({.rank = RankId(1),
                         .kind = SpanKind::kWait,
                         .edge = EdgeId(0),
                         .start = At(0),
                         .end = At(1)});
  trace.spans.push_back(TaskSpan(1, 0, 1, 2));
  EXPECT_THAT(TaskOrders(trace), ElementsAre(ElementsAre(TaskId(2), TaskId(1)),
                                             ElementsAre(TaskId(0))));
}

TEST(CompareTracesTest, ErrorsAreRelativeToThePrediction) {
  StepTrace predicted{.num_ranks = 1};
  predicted.spans = {TaskSpan(0, 0, 0, 10), TaskSpan(0, 1, 10, 30)};
  predicted.finish = At(100);
  StepTrace measured = predicted;
  measured.spans = {TaskSpan(0, 0, 0, 11), TaskSpan(0, 1, 11, 29)};
  measured.finish = At(102);
  const TraceComparison c = CompareTraces(predicted, measured);
  EXPECT_EQ(c.predicted_step_time, Microseconds(100));
  EXPECT_EQ(c.measured_step_time, Microseconds(102));
  EXPECT_NEAR(c.step_time_error, 0.02, 1e-12);
  EXPECT_NEAR(c.mean_task_time_error, 0.1, 1e-12);  // 10 % long, 10 % short.
  EXPECT_TRUE(c.same_order);
}

TEST(CompareTracesTest, AnotherOrderOrAnotherNumberOfRanksShows) {
  StepTrace predicted{.num_ranks = 1};
  predicted.spans = {TaskSpan(0, 0, 0, 1), TaskSpan(0, 1, 1, 2)};
  StepTrace swapped = predicted;
  swapped.spans = {TaskSpan(0, 1, 0, 1), TaskSpan(0, 0, 1, 2)};
  EXPECT_FALSE(CompareTraces(predicted, swapped).same_order);
  StepTrace wider = predicted;
  wider.num_ranks = 2;
  EXPECT_FALSE(CompareTraces(predicted, wider).same_order);
}

TEST(CompareTracesTest, EmptyAndZeroLengthPredictionsDivideByNothing) {
  EXPECT_EQ(CompareTraces({}, {}).step_time_error, 0);
  StepTrace predicted{.num_ranks = 1};
  predicted.spans = {TaskSpan(0, 0, 0, 0)};
  StepTrace measured{.num_ranks = 1};
  measured.spans = {TaskSpan(0, 0, 0, 5), TaskSpan(0, 9, 5, 6)};
  EXPECT_EQ(CompareTraces(predicted, measured).mean_task_time_error, 0);
}

}  // namespace
}  // namespace pipeloom
