#include "ir/check/check_times.h"

#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/text/text_format.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

// Two ranks with a microbatch each way: 1000 + 100 + 1000 + 2000 + 100 + 2000,
// and 500 of epilogue.
constexpr char kPlan[] = R"(plan version 1
job "j" step 0 replica 0 schedule "1f1b"
predicted_step_time_ns 6700 lower_bound_ns 6000 model_flops 0 peak_flops_per_second 0
graph "g"
module "model"
rank 0 limit 0 weights 0 gradients 0 optimizer 0 overhead 0 epilogue 500
rank 1 limit 0 weights 0 gradients 0 optimizer 0 overhead 0 epilogue 0
task 0 F rank 0 module 0 stage 0 microbatch 0 sub 0 time 1000 alloc 10 free 0
task 1 F rank 1 module 0 stage 1 microbatch 0 sub 0 time 1000 alloc 10 free 0
task 2 B rank 1 module 0 stage 1 microbatch 0 sub 0 time 2000 alloc 0 free 10
task 3 B rank 0 module 0 stage 0 microbatch 0 sub 0 time 2000 alloc 0 free 10
edge 0 from 0 to 1 delay 100 occupancy 80 payload 8 rows 2 width 2
edge 1 from 1 to 2 delay 0 occupancy 0 payload 0 rows 0 width 0
edge 2 from 2 to 3 delay 100 occupancy 80 payload 8 rows 2 width 2
edge 3 from 0 to 3 delay 0 occupancy 0 payload 0 rows 0 width 0
program 0
  compute 0
  recv 2
  send 0
  wait_send 0
  wait_recv 2
  compute 3
  free 2
  reduce_gradients
  optimizer_step
program 1
  recv 0
  wait_recv 0
  compute 1
  free 0
  compute 2
  send 2
  wait_send 2
end
)";

absl::Status Check(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  auto plan = ParseExecutionPlan(absl::StrReplaceAll(kPlan, changes));
  if (!plan.ok()) return plan.status();
  return ValidateExecutionPlan(*plan);
}

auto Refuses(const std::string& message) {
  return FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(message));
}

TEST(CheckPredictedTimesTest, TheTimeIsThatOfThePrograms) {
  EXPECT_THAT(Check({}), IsOk());
  EXPECT_THAT(Check({{"time_ns 6700 lower_bound_ns 6000",
                      "time_ns 0 lower_bound_ns 6000"}}),
              IsOk());  // Not known.
  for (const char* wrong : {"1", "6699", "6861", "67000"}) {
    SCOPED_TRACE(wrong);
    EXPECT_THAT(Check({{"time_ns 6700 lower_bound_ns 6000",
                        absl::StrCat("time_ns ", wrong, " lower_bound_ns 0")}}),
                Refuses(absl::StrCat(
                    "predicted_step_time_ns is ", wrong,
                    "; by the plan's own times its programs take 6700, between "
                    "6700 and 6860 on any network")));
  }
  EXPECT_THAT(Check({{"lower_bound_ns 6000", "lower_bound_ns 6701"}}),
              Refuses("lower_bound_ns is 6701, above predicted_step_time_ns"));
  EXPECT_THAT(Check({{"lower_bound_ns 6000", "lower_bound_ns -1"}}),
              ::testing::Not(IsOk()));
  EXPECT_THAT(Check({{"time 2000", "time 2001"}}), Refuses("take 6702"));
  EXPECT_THAT(Check({{"epilogue 500", "epilogue 501"}}), Refuses("take 6701"));
  EXPECT_THAT(Check({{"delay 100", "delay 101"}}), Refuses("take 6702"));
}

TEST(CheckPredictedTimesTest, PlansThatSayTheirLinksAreCheckedExactly) {
  const std::string links =
      "links per-pair blocking_sends 1 host_bandwidth 0 "
      "ring_hops 0 ring_nodes 0\ngraph \"g\"";
  // Each send holds its rank for 80 ns before it computes or ends.
  const auto with_time = [&](const char* time) {
    return Check({{"graph \"g\"", links},
                  {"time_ns 6700", absl::StrCat("time_ns ", time)}});
  };
  EXPECT_THAT(with_time("6700"), IsOk());
  for (const char* wrong : {"6699", "6701", "6860"}) {
    EXPECT_THAT(with_time(wrong),
                Refuses("by the plan's own times and links its programs take "
                        "6700"));
  }
  EXPECT_THAT(Check({{"graph \"g\"",
                      "links per-nic blocking_sends 0 host_bandwidth 0 "
                      "ring_hops 0 ring_nodes 0\nnic_of_rank 0 0\ngraph "
                      "\"g\""},
                     {"time_ns 6700", "time_ns 6800"}}),
              IsOk());
  EXPECT_THAT(Check({{"graph \"g\"",
                      "links per-pair blocking_sends 0 host_bandwidth 0 "
                      "ring_hops 0 ring_nodes 0\nnic_of_rank 0\ngraph "
                      "\"g\""}}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("nic_of_rank has 1 entries")));
}

// A copy takes no time or, at most, as long as its forward, and the backward
// waits for both.
TEST(CheckPredictedTimesTest, CopiesTakeBetweenNothingAndTheirForward) {
  const std::vector<std::pair<std::string, std::string>> copied = {
      {"  compute 1\n  free 0\n",
       "  compute 1\n  offload 1 bytes 10\n  fetch 1 bytes 10\n  free 0\n"}};
  EXPECT_THAT(Check(copied), IsOk());
  for (const char* time : {"6700", "7000", "8860", "8861"}) {
    auto changes = copied;
    changes.push_back({"time_ns 6700", absl::StrCat("time_ns ", time)});
    const absl::Status status = Check(changes);
    if (std::string(time) == "8861") {
      EXPECT_THAT(status, Refuses("between 6700 and 8860 on any network and "
                                  "link to the host"));
    } else {
      EXPECT_THAT(status, IsOk()) << time;
    }
  }
}

}  // namespace
}  // namespace pipeloom
