// The interface for the cost of one operator: between op_graph.h, which makes
// operators, and the models that price them.
#ifndef PIPELOOM_EMULATOR_OPS_OP_COST_H_
#define PIPELOOM_EMULATOR_OPS_OP_COST_H_

#include <algorithm>

#include "absl/strings/string_view.h"
#include "base/units.h"
#include "emulator/ops/op_graph.h"

namespace pipeloom::emulator {

// The source of a time, best first.
enum class CostSource {
  kMeasured,      // An unchanged point of the device profile.
  kInterpolated,  // From neighbouring points, in utilisation.
  kRoofline,      // Peak rates, efficiency of the shape, floor.
};
inline constexpr int kNumCostSources = 3;

// Returns "measured", "interpolated" or "roofline".
absl::string_view Name(CostSource source);

// The time of an operator with its source.
struct OpPrice {
  Duration time{};
  CostSource source = CostSource::kRoofline;
};

// A model of the time of operators. Thread-safe.
class OpCostModel {
 public:
  virtual ~OpCostModel() = default;
  // Returns the time of an operator alone on one GPU: >= 0; 0 for an operator
  // without work. Pure: equal operators cost the same.
  virtual Duration Cost(const Op& op) const = 0;
  // Returns the same with its source; .time == Cost(op).
  virtual OpPrice Price(const Op& op) const { return {Cost(op)}; }
  // Returns how long a compute stream and the communication overlapped with it
  // take together: the longer of the two, and more if one slows the other down.
  // Pure; never less than either, and equal to one if the other is 0.
  virtual Duration Overlap(Duration compute, Duration communication) const {
    return std::max(compute, communication);
  }
  // Returns how much compute can run during `communication` without delaying
  // the end of either.
  virtual Duration RoomDuring(Duration communication) const {
    return communication;
  }
  // Returns the model for the GPUs of a node group of the cluster; -1: of no
  // group.
  virtual const OpCostModel& OnGroup(int32_t group) const {
    (void)group;
    return *this;
  }
};

// Time of steps that run one after another. `wait` is the part of it in which
// the compute stream waits for communication, `gap` how much other compute fits
// in there.
struct StepsCost {
  Duration time{};
  Duration gap{};
  Duration wait{};
};
// Adds the gap and the wait of a step whose `communication` overlaps with its
// own `compute`.
void AddWait(Duration compute, Duration communication, const OpCostModel& costs,
             StepsCost* total);
// Returns the sum over the steps.
StepsCost CostOf(const std::vector<OpStep>& steps, const OpCostModel& costs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_OP_COST_H_
