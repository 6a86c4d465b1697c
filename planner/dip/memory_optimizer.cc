#include "planner/dip/memory_optimizer.h"

#include "absl/status/statusor.h"
#include "planner/flat_graph.h"

namespace pipeloom::planner {
namespace {

constexpr ChooseMemoryOptions kDipOptions = {.rounds = 1,
                                             .program = {.gap = 0.05,
                                                         .max_nodes = 0,
                                                         .root_rounds = 20,
                                                         .node_rounds = 0,
                                                         .exchanges = 0}};

}  // namespace

MemoryOptimizer::MemoryOptimizer(const StageGraph& graph,
                                 const partition::StepMemory& memory)
    : chooser_(graph, memory) {}

int64_t MemoryOptimizer::Optimize(const RankOrders& orders) {
  // From nothing each time, so that an answer depends on its order only.
  const absl::StatusOr<int64_t> time =
      chooser_.Choose(orders, /*start=*/{}, /*budget=*/{}, kDipOptions);
  return time.ok() ? *time : kNoLimit;
}

}  // namespace pipeloom::planner
