#include "planner/strategies/dip/memory_optimizer.h"

#include "absl/status/statusor.h"
#include "planner/memory/memory_levels.h"

namespace pipeloom::planner {
namespace {

constexpr ChooseMemoryOptions kDipOptions = {.rounds = 1,
                                             .program = kRoughProgram};

}  // namespace

MemoryOptimizer::MemoryOptimizer(const StageGraph& graph,
                                 const partition::StepMemory& memory)
    : chooser_(graph, memory),
      fastest_(WithFastestChoices(graph, memory)),
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
