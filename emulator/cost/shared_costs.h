// Prices of operators that several cost models share, each of which owns its
// operator prices and has a cache of its own.
#ifndef PIPELOOM_EMULATOR_COST_SHARED_COSTS_H_
#define PIPELOOM_EMULATOR_COST_SHARED_COSTS_H_

#include <memory>
#include <utility>

#include "emulator/ops/op_cost.h"

namespace pipeloom::emulator {

// Passes every call on to the shared prices. Threads: as those.
class SharedCosts : public OpCostModel {
 public:
  explicit SharedCosts(std::shared_ptr<const OpCostModel> costs)
      : costs_(std::move(costs)) {}
  Duration Cost(const Op& op) const override { return costs_->Cost(op); }
  OpPrice Price(const Op& op) const override { return costs_->Price(op); }
  Duration Overlap(Duration compute, Duration communication) const override {
    return costs_->Overlap(compute, communication);
  }
  Duration RoomDuring(Duration communication) const override {
    return costs_->RoomDuring(communication);
  }
  const OpCostModel& OnGroup(int32_t group) const override {
    return costs_->OnGroup(group);
  }

 private:
  std::shared_ptr<const OpCostModel> costs_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_SHARED_COSTS_H_
