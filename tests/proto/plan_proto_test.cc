#include "proto/convert/plan_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/random.h"
#include "proto/convert/serialize_plan.h"
#include "proto/convert/stage_graph_proto.h"
#include "tests/support/random_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::convert {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomPlan;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PlanProtoTest, RandomPlansComeBackEqualFromEqualBytes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ExecutionPlan plan = RandomPlan(seed);
    const std::string bytes = SerializePlan(plan);
    EXPECT_EQ(bytes, SerializePlan(plan));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan again, ParsePlan(bytes));
    EXPECT_EQ(again, plan);
  }
}

TEST(PlanProtoTest, EveryTruncationIsRefused) {
  const std::string bytes = SerializePlan(RandomPlan(4));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(ParsePlan(bytes.substr(0, length)),
                FailsWith(kInvalid, HasSubstr("not a Pipeloom plan")))
        << length;
  }
}

TEST(PlanProtoTest, AChangedByteNeverGivesAnotherPlan) {
  const ExecutionPlan plan = RandomPlan(5);
  const std::string bytes = SerializePlan(plan);
  Random random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = bytes;
    const auto at =
        static_cast<size_t>(random.Below(static_cast<int64_t>(bytes.size())));
    changed[at] = static_cast<char>(changed[at] ^ (1 << random.Below(8)));
    const absl::StatusOr<ExecutionPlan> parsed = ParsePlan(changed);
    if (parsed.ok()) {
      EXPECT_EQ(*parsed, plan) << "byte " << at;
    }
  }
}

TEST(PlanProtoTest, ForeignBytesAreRefusedWithTheirSize) {
  EXPECT_THAT(ParsePlan(""), FailsWith(kInvalid, HasSubstr("it is empty")));
  EXPECT_THAT(ParsePlan("{\"tasks\": []}"),
              FailsWith(kInvalid, HasSubstr("(13 bytes)")));
  // A message of another type may well parse as this one.
  EXPECT_THAT(ParsePlan(std::string("\x12\x00", 2)),
              FailsWith(kInvalid, HasSubstr("does not begin with")));
}

// A file of `count` tasks of 2 bytes each.
std::string EmptyTasks(int64_t count) {
  v1::ExecutionPlan proto;
  proto.set_format("pipeloom.plan");
  std::string bytes = proto.SerializeAsString();
  bytes += '\x3a';  // Field 7, graph.
  uint64_t length = static_cast<uint64_t>(2 * count);
  for (; length >= 128; length >>= 7) {
    bytes += static_cast<char>((length & 127) | 128);
  }
  bytes += static_cast<char>(length);
  for (int64_t i = 0; i < count; ++i) bytes.append("\x22\0", 2);
  return bytes;
}

TEST(PlanProtoTest, TooManyItemsAreRefusedBeforeTheyTakeMemory) {
  EXPECT_THAT(ParsePlan(EmptyTasks(3)),
              FailsWith(kInvalid, HasSubstr("version is 0")));
  EXPECT_THAT(ParsePlan(EmptyTasks(kMaxPlanItems)),
              FailsWith(kInvalid, HasSubstr("it has over 16777216 items")));
}

TEST(PlanProtoTest, NamesThatAreNotUtf8AreRefusedInSilence) {
  std::string bytes = SerializePlan(RandomPlan(4));
  const size_t at = bytes.find("random");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = '\xff';
  ::testing::internal::CaptureStderr();
  const absl::Status status = ParsePlan(bytes).status();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(status, FailsWith(kInvalid, HasSubstr("does not parse")));
}

TEST(PlanProtoTest, MistakesAreNamedWithFieldAndValue) {
  const v1::ExecutionPlan good = ToProto(RandomPlan(6));
  ASSERT_TRUE(FromProto(good).ok());
  const struct {
    std::string name;
    void (*change)(v1::ExecutionPlan&);
    std::string message;
  } cases[] = {
      {"format", [](v1::ExecutionPlan& p) { p.set_format("x"); },
       "format is \"x\"; it must be \"pipeloom.plan\""},
      {"version", [](v1::ExecutionPlan& p) { p.set_version(2); },
       "version is 2; it must be 1"},
      {"programs", [](v1::ExecutionPlan& p) { p.add_programs(); }, "programs"},
      {"compute",
       [](v1::ExecutionPlan& p) {
         p.mutable_programs(0)->mutable_instructions(0)->set_compute(9999);
       },
       "programs[0].instructions[0]: compute is 9999"},
      {"send",
       [](v1::ExecutionPlan& p) {
         p.mutable_programs(0)->mutable_instructions(0)->set_send(-1);
       },
       "programs[0].instructions[0]: send is -1"},
      {"no instruction",
       [](v1::ExecutionPlan& p) {
         p.mutable_programs(0)->mutable_instructions(0)->Clear();
       },
       "programs[0].instructions[0]: is not set"},
      {"kind",
       [](v1::ExecutionPlan& p) {
         p.mutable_graph()->mutable_tasks(0)->set_kind(
             v1::TASK_KIND_UNSPECIFIED);
       },
       "graph.tasks[0].kind is 0"},
      {"rank",
       [](v1::ExecutionPlan& p) {
         p.mutable_graph()->mutable_tasks(0)->set_rank(77);
       },
       "rank 77 does not exist"},
      {"step", [](v1::ExecutionPlan& p) { p.set_step(-1); },
       "step is -1; it must be >= 0"},
      {"replica", [](v1::ExecutionPlan& p) { p.set_replica(-2); },
       "replica is -2; it must be >= 0"},
      {"lower bound", [](v1::ExecutionPlan& p) { p.set_lower_bound_ns(-1); },
       "lower_bound_ns is -1; it must be >= 0"},
      {"not a number",
       [](v1::ExecutionPlan& p) {
         p.set_model_flops(std::numeric_limits<double>::quiet_NaN());
       },
       "model_flops is nan; it must be finite and >= 0"},
      {"infinite",
       [](v1::ExecutionPlan& p) {
         p.set_peak_flops_per_second(std::numeric_limits<double>::infinity());
       },
       "peak_flops_per_second is inf; it must be finite and >= 0"},
      {"sharing",
       [](v1::ExecutionPlan& p) {
         p.mutable_links()->set_sharing(
             static_cast<v1::SharedLinks::Sharing>(6));
       },
       "links.sharing is 6; it must be in [0, 5]"},
      {"host bandwidth",
       [](v1::ExecutionPlan& p) {
         p.mutable_links()->set_host_bandwidth_bytes_per_second(-1);
       },
       "links.host_bandwidth is -1 bytes per second; it must be finite and >= "
       "0"},
      {"a card too many",
       [](v1::ExecutionPlan& p) {
         p.mutable_links()->clear_nic_of_rank();
         for (int i = 0; i <= p.graph().ranks_size(); ++i) {
           p.mutable_links()->add_nic_of_rank(0);
         }
       },
       "links.nic_of_rank has "},
      {"no node",
       [](v1::ExecutionPlan& p) {
         p.mutable_links()->clear_node_of_rank();
         for (int i = 0; i < p.graph().ranks_size(); ++i) {
           p.mutable_links()->add_node_of_rank(-1);
         }
       },
       "links.node_of_rank[0] is -1; it must be in [0, 2^24)"},
      {"checksum", [](v1::ExecutionPlan& p) { p.set_step(p.step() + 1); },
       "checksum is"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    v1::ExecutionPlan proto = good;
    c.change(proto);
    EXPECT_THAT(FromProto(proto), FailsWith(kInvalid, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace pipeloom::convert
