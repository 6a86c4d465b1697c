#include "proto/convert/carried_step_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace pipeloom::convert {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::HasSubstr;

CarriedStep TwoMicrobatches() {
  CarriedStep step;
  step.microbatches = {
      {{.module = ModuleId(0), .start = 0.125},
       {.module = ModuleId(1), .backward = true, .start = 0.75}},
      {{.module = ModuleId(1), .start = 0.25}}};
  step.places = {
      {{.stage = StageId(0), .start = 0.125F, .held = 0.5F},
       {.stage = StageId(0), .sub_microbatch = 1, .start = 0.25F},
       {.stage = StageId(0), .pass = Pass::kBackward, .start = 0.875F},
       {.stage = StageId(3), .pass = Pass::kWeightGrad, .start = 0.9375F}},
      {}};
  step.work = {Nanoseconds(5'000'000'000), Nanoseconds(0)};
  step.room = {Bytes(1), Bytes(0), Bytes(int64_t{1} << 40)};
  step.quick_ratio = 1.03125;
  step.refined_ratio = 1.0625;
  return step;
}

TEST(CarriedStepProtoTest, ComesBackTheSame) {
  ASSERT_OK_AND_ASSIGN(const CarriedStep again,
                       FromProto(ToProto(TwoMicrobatches())));
  EXPECT_EQ(again, TwoMicrobatches());
  ASSERT_OK_AND_ASSIGN(const CarriedStep empty,
                       FromProto(ToProto(CarriedStep())));
  EXPECT_EQ(empty, CarriedStep());
}

TEST(CarriedStepProtoTest, SoDoSeveral) {
  const std::vector<std::shared_ptr<const CarriedStep>> steps = {
      std::make_shared<const CarriedStep>(TwoMicrobatches()),
      std::make_shared<const CarriedStep>()};
  ASSERT_OK_AND_ASSIGN(const auto again, FromProto(ToProto(steps)));
  ASSERT_EQ(again.size(), 2);
  EXPECT_EQ(*again[0], TwoMicrobatches());
  EXPECT_EQ(*again[1], CarriedStep());
}

// Whoever uses lessons takes tasks to be sorted and numbers to be numbers.
TEST(CarriedStepProtoTest, WrongValuesAreNamed) {
  using Change = std::function<void(v1::CarriedStep*)>;
  using Microbatch = v1::CarriedStep::Microbatch;
  const auto in_first = [](const std::function<void(Microbatch*)>& change) {
    return [change](v1::CarriedStep* s) { change(s->mutable_microbatches(0)); };
  };
  const struct {
    Change change;
    std::string message;
  } cases[] = {
      {in_first([](Microbatch* m) { m->set_work_ns(-1); }),
       "microbatches[0].work_ns is -1; it must be >= 0"},
      {in_first([](Microbatch* m) { m->mutable_segments(1)->set_module(-2); }),
       "microbatches[0].segments[1].module is -2"},
      {in_first([](Microbatch* m) {
         m->mutable_segments(0)->set_start(
             std::numeric_limits<double>::quiet_NaN());
       }),
       "microbatches[0].segments[0].start is nan; it must be a number >= 0"},
      {in_first([](Microbatch* m) { m->add_held(1); }),
       "microbatches[0].held has 5 entries; it must have 4, as stage"},
      {in_first([](Microbatch* m) { m->set_stage(0, -1); }),
       "microbatches[0].stage[0] is -1"},
      {in_first([](Microbatch* m) { m->set_sub_microbatch(1, -1); }),
       "microbatches[0].sub_microbatch[1] is -1"},
      {in_first([](Microbatch* m) { m->set_pass(2, 3); }),
       "microbatches[0].pass[2] is 3; it must be in [0, 3)"},
      {in_first([](Microbatch* m) {
         m->set_start(3, std::numeric_limits<float>::infinity());
       }),
       "microbatches[0].start[3] is inf"},
      {in_first([](Microbatch* m) { m->set_held(0, -0.5F); }),
       "microbatches[0].held[0] is -0.5"},
      {in_first([](Microbatch* m) { m->set_sub_microbatch(1, 0); }),
       "microbatches[0].stage[1] is 0; tasks must be sorted"},
      {[](v1::CarriedStep* s) { s->set_room_bytes(2, -7); },
       "room_bytes[2] is -7"},
      {[](v1::CarriedStep* s) { s->set_quick_ratio(-1); }, "quick_ratio is -1"},
      {[](v1::CarriedStep* s) { s->set_refined_ratio(-1); },
       "refined_ratio is -1"},
  };
  for (const auto& [change, message] : cases) {
    v1::CarriedStep proto = ToProto(TwoMicrobatches());
    change(&proto);
    EXPECT_THAT(FromProto(proto), FailsWith(absl::StatusCode::kInvalidArgument,
                                            HasSubstr(message)));
    v1::CarriedSteps all;
    *all.add_steps() = proto;
    EXPECT_THAT(FromProto(all), FailsWith(absl::StatusCode::kInvalidArgument,
                                          HasSubstr(message)));
  }
}

}  // namespace
}  // namespace pipeloom::convert
