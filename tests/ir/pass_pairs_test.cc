// A forward and a backward of two microbatches that run together, in every part
// of ir/plan that knows of them, on two ranks by hand.
#include "ir/plan/pass_pairs.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/text/text_format.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

// Two microbatches on two ranks. Rank 0 runs the forward of the second, task 4,
// together with the backward of the first, task 3: 2400 instead of 1000 + 2000.
// Forward 0 ends at 1000, backward 2 at 4100, the pair at 4200 + 2400 = 6600,
// backward 6 at 6700 + 1000 + 2000 = 9700, backward 7 at 11800.
constexpr char kPlan[] = R"(plan version 1
job "j" step 0 replica 0 schedule "1f1b"
predicted_step_time_ns 11800 lower_bound_ns 0 model_flops 0 peak_flops_per_second 0
graph "g"
module "model"
rank 0 limit 120 weights 100 gradients 0 optimizer 0 overhead 0 epilogue 0
rank 1 limit 0 weights 0 gradients 0 optimizer 0 overhead 0 epilogue 0
task 0 F rank 0 module 0 stage 0 microbatch 0 sub 0 time 1000 alloc 10 free 0
task 1 F rank 1 module 0 stage 1 microbatch 0 sub 0 time 1000 alloc 10 free 0
task 2 B rank 1 module 0 stage 1 microbatch 0 sub 0 time 2000 alloc 0 free 10
task 3 B rank 0 module 0 stage 0 microbatch 0 sub 0 time 0 alloc 0 free 10 overlaps 4
task 4 F rank 0 module 0 stage 0 microbatch 1 sub 0 time 2400 alloc 10 free 0
task 5 F rank 1 module 0 stage 1 microbatch 1 sub 0 time 1000 alloc 10 free 0
task 6 B rank 1 module 0 stage 1 microbatch 1 sub 0 time 2000 alloc 0 free 10
task 7 B rank 0 module 0 stage 0 microbatch 1 sub 0 time 2000 alloc 0 free 10
edge 0 from 0 to 1 delay 100 occupancy 80 payload 0 rows 0 width 0
edge 1 from 1 to 2 delay 0 occupancy 0 payload 0 rows 0 width 0
edge 2 from 2 to 3 delay 100 occupancy 80 payload 0 rows 0 width 0
edge 3 from 0 to 3 delay 0 occupancy 0 payload 0 rows 0 width 0
edge 4 from 4 to 5 delay 100 occupancy 80 payload 0 rows 0 width 0
edge 5 from 5 to 6 delay 0 occupancy 0 payload 0 rows 0 width 0
edge 6 from 6 to 7 delay 100 occupancy 80 payload 0 rows 0 width 0
edge 7 from 4 to 7 delay 0 occupancy 0 payload 0 rows 0 width 0
program 0
  compute 0
  send 0
  recv 2
  wait_recv 2
  compute 4
  send 4
  compute 3
  free 2
  recv 6
  wait_recv 6
  compute 7
  free 6
program 1
  recv 0
  wait_recv 0
  compute 1
  free 0
  compute 2
  send 2
  recv 4
  wait_recv 4
  compute 5
  free 4
  compute 6
  send 6
end
)";

using Changes = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<ExecutionPlan> Changed(const Changes& changes) {
  return ParseExecutionPlan(absl::StrReplaceAll(kPlan, changes));
}

absl::Status Check(const Changes& changes) {
  const auto plan = Changed(changes);
  return plan.ok() ? ValidateExecutionPlan(*plan) : plan.status();
}

RankOrders OrdersOfPlan() {
  RankOrders orders(2);
  for (const int t : {0, 4, 3, 7}) orders[RankId(0)].push_back(TaskId(t));
  for (const int t : {1, 2, 5, 6}) orders[RankId(1)].push_back(TaskId(t));
  return orders;
}

TEST(PassPairsTest, APlanWithAPairIsValidAndItsTextParsesBack) {
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, Changed({}));
  EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
  EXPECT_EQ(*ParseExecutionPlan(ToString(plan)), plan);
  const auto seconds = SecondsOfPairs(plan.graph);
  for (const TaskId t : plan.graph.task_ids()) {
    EXPECT_EQ(seconds[t], t == TaskId(4) ? TaskId(3) : TaskId());
    EXPECT_EQ(IsSecondOfPair(plan.graph.task(t)), t == TaskId(3));
  }
}

TEST(PassPairsTest, BothStartWithTheInputsOfBothAndEndTogether) {
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, Changed({}));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       TimeSchedule(plan.graph, OrdersOfPlan()));
  EXPECT_THAT(ValidateSchedule(plan.graph, schedule), IsOk());
  EXPECT_EQ(schedule.start[TaskId(4)] - kStepStart, Nanoseconds(4200));
  EXPECT_EQ(schedule.start[TaskId(3)] - kStepStart, Nanoseconds(6600));
  EXPECT_EQ(schedule.start[TaskId(5)] - kStepStart, Nanoseconds(6700));
  EXPECT_EQ(schedule.step_time(), Nanoseconds(11800));
  EXPECT_EQ(schedule.peak[RankId(0)], Bytes(120));

  // Without the input of the second pass it would start at 1000.
  Schedule early = schedule;
  early.start[TaskId(4)] = kStepStart + Nanoseconds(1000);
  EXPECT_THAT(ValidateSchedule(plan.graph, early),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("has its inputs at 4.200 us")));
}

TEST(PassPairsTest, TheSecondDirectlyFollowsTheFirst) {
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, Changed({}));
  RankOrders orders = OrdersOfPlan();
  std::swap(orders[RankId(0)][1], orders[RankId(0)][2]);
  EXPECT_THAT(TimeSchedule(plan.graph, orders),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("does not directly follow")));
  ASSERT_OK_AND_ASSIGN(Schedule schedule,
                       TimeSchedule(plan.graph, OrdersOfPlan()));
  std::vector<TaskId>& order = schedule.order[RankId(0)];
  order = {TaskId(0), TaskId(3), TaskId(4), TaskId(7)};
  schedule.start[TaskId(3)] = schedule.start[TaskId(4)];
  schedule.peak[RankId(0)] = Bytes(110);
  EXPECT_THAT(ValidateSchedule(plan.graph, schedule),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("must directly follow it")));
}

TEST(PassPairsTest, GraphsRefuseWhatIsNoPair) {
  const auto refuses = [](const Changes& changes, const std::string& message) {
    EXPECT_THAT(Changed(changes), FailsWith(absl::StatusCode::kInvalidArgument,
                                            HasSubstr(message)));
  };
  refuses({{"free 10 overlaps 4", "free 10 overlaps 7"}}, "the one with the");
  refuses({{"free 10 overlaps 4", "free 10 overlaps 0"}}, "the one with the");
  refuses({{"free 10 overlaps 4", "free 10 overlaps 5"}}, "the one with the");
  refuses({{"free 10 overlaps 4", "free 10 overlaps 99"}}, "the one with the");
  refuses({{"time 0 alloc 0 free 10 overlaps 4",
            "time 5 alloc 0 free 10 overlaps 4"}},
          "duration 5 ns; it must be 0");
  refuses({{"microbatch 1 sub 0 time 2400", "microbatch 0 sub 0 time 2400"}},
          "of two microbatches");
}

TEST(PassPairsTest, PlansAreRefusedWhoseProgramsDoNotRunThePairTogether) {
  const auto refuses = [](const Changes& changes, const std::string& message) {
    EXPECT_THAT(Check(changes), FailsWith(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr(message)));
  };
  refuses({{"  wait_recv 2\n  compute 4\n  send 4\n",
            "  compute 4\n  send 4\n  wait_recv 2\n"}},
          "it runs together with task 3, but: ");
  refuses({{"  compute 4\n  send 4\n  compute 3\n  free 2\n",
            "  compute 3\n  free 2\n  compute 4\n  send 4\n"}},
          "it runs together with task 4, which comes later");
  refuses({{"  send 4\n  compute 3\n  free 2\n  recv 6\n  wait_recv 6\n  "
            "compute 7\n  free 6\n",
            "  send 4\n  recv 6\n  wait_recv 6\n  compute 7\n  free 6\n  "
            "compute 3\n  free 2\n"}},
          "it runs together with task 3, which must be computed next");
  refuses({{"limit 120", "limit 119"}}, "120 B are needed");
  refuses({{"time_ns 11800", "time_ns 11799"}},
          "by the plan's own times its programs take 11800");
}

}  // namespace
}  // namespace pipeloom
