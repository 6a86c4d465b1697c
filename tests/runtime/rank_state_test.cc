// RankClock, MemoryAccount, BufferTable, CommitPoint and SyntheticDevice: what
// one rank is made of.
#include <stop_token>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/buffer_table.h"
#include "runtime/commit_point.h"
#include "runtime/memory_account.h"
#include "runtime/rank_clock.h"
#include "runtime/synthetic_device.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kLong = std::chrono::seconds(60);

TEST(RankClockTest, AWaitNeverEndsBeforeItsTime) {
  RankClock clock({.max_lag = std::chrono::hours(1)});
  ASSERT_THAT(clock.Start(WallNow()), IsOk());
  for (const int64_t microseconds : {0, 1, 79, 81, 300, 2500, 12000}) {
    const WallTime until =
        clock.Progress() + std::chrono::microseconds(microseconds);
    ASSERT_THAT(clock.WaitUntil(until), IsOk());
    EXPECT_GE(WallNow(), until);
    EXPECT_EQ(clock.Progress(), until);
  }
}

TEST(RankClockTest, ProgressForgivesLatenessUpToTheLagAndNoMore) {
  const WallTime start = WallNow() - std::chrono::seconds(10);
  RankClock forgiving({.max_lag = std::chrono::hours(1)});
  ASSERT_THAT(forgiving.Start(start), IsOk());
  EXPECT_EQ(forgiving.Progress(), start);
  ASSERT_THAT(forgiving.Spend(Seconds(3)), IsOk());  // Has passed long ago.
  EXPECT_EQ(forgiving.Progress(), start + std::chrono::seconds(3));

  RankClock strict({.max_lag = std::chrono::seconds(2)});
  ASSERT_THAT(strict.Start(start), IsOk());
  EXPECT_GE(strict.Progress(), start + std::chrono::seconds(8));
  EXPECT_LE(strict.Progress(), WallNow());
}

TEST(RankClockTest, TimesOfThePlanAreScaledBothWays) {
  RankClock clock({.time_scale = 0.25});
  const WallTime start = WallNow();
  ASSERT_THAT(clock.Start(start), IsOk());
  EXPECT_EQ(clock.ToSim(start + std::chrono::microseconds(10)),
            kStepStart + Microseconds(40));
  EXPECT_EQ(ToWall(Microseconds(40), 0.25), std::chrono::microseconds(10));
  EXPECT_EQ(ToWall(kZero, 0.25), WallDuration::zero());
}

TEST(RankClockTest, AStopRequestEndsALongWait) {
  std::stop_source stop;
  RankClock clock({.stop = stop.get_token()});
  ASSERT_THAT(clock.Start(WallNow()), IsOk());
  absl::Status status;
  {
    std::jthread waiter(
        [&] { status = clock.WaitUntil(WallNow() + std::chrono::hours(1)); });
    stop.request_stop();
  }
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kCancelled,
                                "the run was "
                                "stopped"));
}

RankMemory SmallMemory() {
  return {.limit = Bytes(100), .weights = Bytes(30), .overhead = Bytes(10)};
}

TEST(MemoryAccountTest, CountsByItemAndRefusesWhatPassesTheLimit) {
  RankClock clock({});
  ASSERT_THAT(clock.Start(WallNow()), IsOk());
  MemoryAccount account(RankId(2), SmallMemory(), &clock);
  EXPECT_EQ(account.held(), Bytes(40));
  ASSERT_THAT(account.Take(MemoryItem::kActivations, Bytes(60)), IsOk());
  EXPECT_THAT(
      account.Take(MemoryItem::kReceived, Bytes(1)),
      FailsWith(absl::StatusCode::kResourceExhausted,
                HasSubstr("1 B more of received pass the limit of 100 B; held: "
                          "weights 30, gradients 0, optimizer 0, overhead 10, "
                          "activations 60, received 0, sent 0")));
  EXPECT_THAT(account.Release(MemoryItem::kActivations, Bytes(61)),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("61 B of activations")));
  ASSERT_THAT(account.Release(MemoryItem::kActivations, Bytes(60)), IsOk());
  EXPECT_EQ(account.held(), Bytes(40));
  EXPECT_EQ(account.peak(), Bytes(100));
  std::vector<int64_t> deltas;
  for (const MemoryStep& step : account.history()) {
    EXPECT_EQ(step.rank, RankId(2));
    deltas.push_back(step.delta.count());
  }
  EXPECT_THAT(deltas, ElementsAre(30, 10, 60, -60));
}

TEST(MemoryAccountTest, ALimitOfZeroIsNone) {
  RankClock clock({});
  MemoryAccount account(RankId(0), {}, &clock);
  EXPECT_THAT(account.Take(MemoryItem::kReceived, Bytes(int64_t{1} << 60)),
              IsOk());
}

TEST(BufferTableTest, RefusesDoubleTakesDoubleFreesAndStrangers) {
  RankClock clock({});
  MemoryAccount account(RankId(0), SmallMemory(), &clock);
  BufferTable buffers(&account, /*allocate=*/true);
  const auto no_buffer = FailsWith(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("edge 4 has no buffer"));
  EXPECT_THAT(buffers.Free(EdgeId(4)), no_buffer);
  EXPECT_THAT(buffers.Find(EdgeId(4)), no_buffer);
  ASSERT_OK_AND_ASSIGN(const absl::Span<std::byte> bytes,
                       buffers.Take(EdgeId(4), Bytes(60)));
  EXPECT_EQ(bytes.size(), 60u);
  bytes[59] = std::byte{7};
  EXPECT_THAT(buffers.Take(EdgeId(4), Bytes(0)),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("edge 4 has a buffer already")));
  EXPECT_THAT(buffers.Take(EdgeId(5), Bytes(1)),
              FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("")));
  ASSERT_OK_AND_ASSIGN(const absl::Span<const std::byte> found,
                       buffers.Find(EdgeId(4)));
  EXPECT_EQ(found[59], std::byte{7});
  EXPECT_THAT(buffers.Free(EdgeId(4)), IsOk());
  EXPECT_THAT(buffers.Free(EdgeId(4)), no_buffer);
  EXPECT_EQ(account.held(MemoryItem::kReceived), Bytes(0));
  EXPECT_EQ(buffers.size(), 0);
}

TEST(BufferTableTest, LargeTensorsAreCountedInFullAndKeptInPart) {
  RankClock clock({});
  MemoryAccount account(RankId(0), {}, &clock);
  BufferTable buffers(&account, /*allocate=*/true);
  ASSERT_OK_AND_ASSIGN(const absl::Span<std::byte> bytes,
                       buffers.Take(EdgeId(0), Bytes(int64_t{1} << 40)));
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), kMaxResident.count());
  EXPECT_EQ(account.held(), Bytes(int64_t{1} << 40));
  EXPECT_EQ(ResidentBytes(Bytes(5), /*allocate=*/false), Bytes(0));
}

TEST(CommitPointTest, NobodyPassesBeforeTheLastHasArrived) {
  CommitPoint point(3);
  point.Arrive();
  point.Arrive();
  EXPECT_THAT(point.Wait(WallNow()),
              FailsWith(absl::StatusCode::kDeadlineExceeded,
                        HasSubstr("1 ranks have not come")));
  absl::Status first;
  {
    std::jthread waiter([&] { first = point.Wait(WallNow() + kLong); });
    point.Arrive();
  }
  EXPECT_THAT(first, IsOk());
}

TEST(CommitPointTest, AnAbortCountsUnlessEveryoneIsThere) {
  CommitPoint point(2);
  point.Arrive();
  point.Abort(absl::UnavailableError("rank 1 failed"));
  point.Abort(absl::InternalError("later"));
  EXPECT_THAT(point.Wait(WallNow() + kLong),
              FailsWith(absl::StatusCode::kUnavailable, "rank 1 failed"));
  CommitPoint complete(1);
  complete.Arrive();
  complete.Abort(absl::UnavailableError("too late"));
  EXPECT_THAT(complete.Wait(WallNow() + kLong), IsOk());
}

TEST(SyntheticDeviceTest, SpendsTimeAndMemoryOfTasks) {
  for (const bool allocate : {false, true}) {
    SCOPED_TRACE(allocate);
    ExecutionPlan plan;
    plan.graph = pipeloom::testing::UniformGraph(
        {.ranks = 1, .microbatches = 2, .activation = Bytes(5000)});
    RankClock clock({.time_scale = 1e-3});
    const WallTime start = WallNow();
    ASSERT_THAT(clock.Start(start), IsOk());
    MemoryAccount account(RankId(0), {}, &clock);
    const auto device = MakeSyntheticDevice({.plan = &plan,
                                             .rank = RankId(0),
                                             .clock = &clock,
                                             .account = &account,
                                             .allocate = allocate});
    Duration busy{};
    for (const TaskId t : plan.graph.task_ids()) {
      ASSERT_THAT(device->Compute(t), IsOk());
      busy += plan.graph.task(t).duration;
    }
    EXPECT_GE(WallNow() - start, ToWall(busy, 1e-3));
    EXPECT_EQ(account.held(), Bytes(0));
    ASSERT_THAT(device->Compute(TaskId(0)), IsOk());
    ASSERT_THAT(device->Offload(TaskId(0), Bytes(4000)), IsOk());
    EXPECT_EQ(account.held(), Bytes(1000));
    ASSERT_THAT(device->Fetch(TaskId(0), Bytes(4000)), IsOk());
    EXPECT_EQ(account.held(), Bytes(5000));
    EXPECT_EQ(account.peak(), Bytes(5000));
  }
}

}  // namespace
}  // namespace pipeloom::runtime
