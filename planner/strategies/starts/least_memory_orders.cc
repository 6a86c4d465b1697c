#include "planner/strategies/starts/least_memory_orders.h"

#include <cstdint>
#include <vector>

#include "planner/construct/list_scheduler.h"
#include "planner/core/memory_feasibility.h"

namespace pipeloom::planner {

RankOrders ForLeastMemory(const FlatGraph& least, double share) {
  ListScheduler scheduler(least);
  if (!scheduler.CanRun()) return {};
  std::vector<int64_t> capacity;
  for (const int64_t bytes : least.capacity) {
    capacity.push_back(
        bytes < 0 ? bytes
                  : static_cast<int64_t>(share * static_cast<double>(bytes)));
  }
  scheduler.Run({.prefer = Prefer::kAlternate, .capacity = capacity});
  return OrdersOf(least, scheduler.sequence());
}

RankOrders OneByOne(const FlatGraph& least) {
  const FeasibilityResult decided = DecideFeasibility(least);
  if (decided.verdict != Feasibility::kLegal) return {};
  return OrdersOf(least, decided.sequence);
}

}  // namespace pipeloom::planner
