#include "planner/strategies/dip/memory_optimizer.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {
namespace {

constexpr ChooseMemoryOptions kDipOptions = {.rounds = 1,
                                             .program = {.gap = 0.05,
                                                         .max_nodes = 0,
                                                         .root_rounds = 20,
                                                         .node_rounds = 0,
                                                         .exchanges = 0}};

FlatGraph WithFastest(const StageGraph& graph,
                      const partition::StepMemory& memory) {
  FlatGraph flat(graph);
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    int64_t& time =
        flat.duration[static_cast<size_t>(memory.pairs[id].backward.value())];
    for (const partition::MemoryCandidate& c : memory.candidates(id)) {
      time = std::min(time, c.effect.backward.count());
    }
  }
  return flat;
}

}  // namespace

MemoryOptimizer::MemoryOptimizer(const StageGraph& graph,
                                 const partition::StepMemory& memory)
    : chooser_(graph, memory),
      fastest_(WithFastest(graph, memory)),
      retimer_(fastest_) {}

int64_t MemoryOptimizer::LeastTime(absl::Span<const int32_t> sequence) {
  return retimer_.Retime(sequence);
}

int64_t MemoryOptimizer::Optimize(const RankOrders& orders) {
  // Starts from nothing each time, so that an answer depends on its order only.
  const absl::StatusOr<int64_t> time =
      chooser_.Choose(orders, /*start=*/{}, /*budget=*/{}, kDipOptions);
  return time.ok() ? *time : kNoLimit;
}

}  // namespace pipeloom::planner
