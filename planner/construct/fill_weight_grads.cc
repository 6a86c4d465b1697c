#include "planner/construct/fill_weight_grads.h"

#include <cstdint>
#include <vector>

#include "planner/construct/list_scheduler.h"
#include "planner/core/executor.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {
namespace {

// How long a rank waits for a forward or backward that comes first, in
// durations of the task that it could run instead.
constexpr double kPatience[] = {0, 1};

}  // namespace

RankOrders FillWithWeightGrads(const StageGraph& graph,
                               const RankOrders& orders) {
  const FlatGraph flat(graph);
  std::vector<int32_t> by_priority;
  std::vector<int32_t> weight_grads;
  for (const int32_t t : Linearize(flat, orders)) {
    const bool is_last = flat.pass[t] == Pass::kWeightGrad;
    (is_last ? weight_grads : by_priority).push_back(t);
  }
  if (weight_grads.empty()) return {};
  by_priority.insert(by_priority.end(), weight_grads.begin(),
                     weight_grads.end());
  ListScheduler scheduler(flat);
  if (!scheduler.CanRun()) return {};
  int64_t best = kNoLimit;
  RankOrders filled;
  for (const double patience : kPatience) {
    const int64_t time = scheduler.Run({.order = by_priority,
                                        .prefer = Prefer::kPriority,
                                        .patience = patience,
                                        .give_up = best});
    if (time >= best) continue;
    best = time;
    filled = OrdersOf(flat, scheduler.sequence());
  }
  return filled;
}

}  // namespace pipeloom::planner
