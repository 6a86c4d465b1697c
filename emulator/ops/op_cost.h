// What one operator costs: the seam between where operators come from
// (op_graph.h) and where their times come from.
#ifndef PIPELOOM_EMULATOR_OPS_OP_COST_H_
#define PIPELOOM_EMULATOR_OPS_OP_COST_H_

#include <algorithm>

#include "absl/strings/string_view.h"
#include "base/units.h"
#include "emulator/ops/op_graph.h"

namespace pipeloom::emulator {

// Where a time comes from, best first.
enum class CostSource {
  kMeasured,      // A point of the device profile, as it is.
  kInterpolated,  // From points near by, in utilisation.
  kRoofline,      // Peak rates, efficiency of the shape, floor.
};
inline constexpr int kNumCostSources = 3;

// "measured", "interpolated", "roofline".
absl::string_view Name(CostSource source);

struct OpPrice {
  Duration time{};
  CostSource source = CostSource::kRoofline;
};

class OpCostModel {
 public:
  virtual ~OpCostModel() = default;
  // Alone on one GPU. >= 0; 0 for an operator without work. Pure: equal
  // operators cost the same. Any number of threads.
  virtual Duration Cost(const Op& op) const = 0;
  // The same with its source; .time == Cost(op).
  virtual OpPrice Price(const Op& op) const { return {Cost(op)}; }
  // A compute stream and the communication beside it, both together: the
  // longer, and more where one slows the other down. Pure; never less than
  // either, and with nothing on one side the other.
  virtual Duration Overlap(Duration compute, Duration communication) const {
    return std::max(compute, communication);
  }
  // Returns how much compute can run during `communication` without either's
  // end being later for it.
  virtual Duration RoomDuring(Duration communication) const {
    return communication;
  }
  // On the GPUs of a node group of the cluster; -1: of none.
  virtual const OpCostModel& OnGroup(int32_t group) const {
    (void)group;
    return *this;
  }
};

// The time of the steps one after another, and how much other compute finds
// room in it while the compute stream waits for communication.
struct StepsCost {
  Duration time{};
  Duration gap{};
};
StepsCost CostOf(const std::vector<OpStep>& steps, const OpCostModel& costs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_OP_COST_H_
