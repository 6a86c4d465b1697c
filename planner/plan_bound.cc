#include "planner/plan_bound.h"

#include <algorithm>
#include <cstdint>

#include "planner/flat_graph.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kMostTasks = 20'000;

}  // namespace

NamedBound PlanBound(const StageGraph& graph,
                     const partition::StepMemory* memory) {
  FlatGraph flat(graph);
  if (flat.num_tasks > kMostTasks) return LowerBoundWithoutMemory(flat);
  if (memory == nullptr) return CheapLowerBound(flat);
  for (const StagePairId id : memory->pairs.ids()) {
    const partition::StagePair& pair = memory->pairs[id];
    if (pair.backward.is_none()) continue;
    const int32_t forward = pair.forward.value();
    const int32_t backward = pair.backward.value();
    int64_t& held = flat.alloc[forward];
    for (const partition::MemoryCandidate& c : memory->candidates(id)) {
      held = std::min(held, c.effect.held().count());
      flat.duration[backward] =
          std::min(flat.duration[backward], c.effect.backward.count());
    }
    flat.free[forward] = 0;
    flat.alloc[backward] = 0;
    flat.free[backward] = held;
    if (pair.weight_grad.is_none()) continue;
    flat.alloc[pair.weight_grad.value()] = 0;
    flat.free[pair.weight_grad.value()] = 0;
  }
  return CheapLowerBound(flat);
}

}  // namespace pipeloom::planner
