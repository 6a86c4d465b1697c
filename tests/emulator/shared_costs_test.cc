#include "emulator/cost/shared_costs.h"

#include <gtest/gtest.h>

#include <memory>

namespace pipeloom::emulator {
namespace {

// Prices unlike the defaults of OpCostModel in every call.
class OddCosts : public OpCostModel {
 public:
  Duration Cost(const Op&) const override { return Duration(3); }
  OpPrice Price(const Op&) const override {
    return {Duration(3), CostSource::kMeasured};
  }
  Duration Overlap(Duration, Duration) const override { return Duration(5); }
  Duration RoomDuring(Duration) const override { return Duration(7); }
  const OpCostModel& OnGroup(int32_t) const override { return other_; }

  const OpCostModel* other() const { return &other_; }

 private:
  class Other : public OpCostModel {
    Duration Cost(const Op&) const override { return Duration(9); }
  };
  Other other_{};
};

TEST(SharedCostsTest, EveryCallIsPassedOn) {
  const auto odd = std::make_shared<OddCosts>();
  const SharedCosts shared(odd);
  const Op op = GemmOp{.m = 1, .n = 1, .k = 1};
  EXPECT_EQ(shared.Cost(op), Duration(3));
  EXPECT_EQ(shared.Price(op).time, Duration(3));
  EXPECT_EQ(shared.Price(op).source, CostSource::kMeasured);
  EXPECT_EQ(shared.Overlap(Duration(1), Duration(2)), Duration(5));
  EXPECT_EQ(shared.RoomDuring(Duration(1)), Duration(7));
  EXPECT_EQ(&shared.OnGroup(0), odd->other());
}

}  // namespace
}  // namespace pipeloom::emulator
