// What one operator costs: the seam between where operators come from
// (op_graph.h) and where their times come from.
#ifndef PIPELOOM_EMULATOR_OP_COST_H_
#define PIPELOOM_EMULATOR_OP_COST_H_

#include "base/units.h"
#include "emulator/op_graph.h"

namespace pipeloom::emulator {

class OpCostModel {
 public:
  virtual ~OpCostModel() = default;
  // Alone on one GPU. >= 0; 0 for an operator without work. Pure: equal
  // operators cost the same. Any number of threads.
  virtual Duration Cost(const Op& op) const = 0;
};

// The steps one after another.
Duration CostOf(const std::vector<OpStep>& steps, const OpCostModel& costs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OP_COST_H_
