#include "planner/baselines/megatron.h"

#include "planner/baselines/baseline_strategy.h"
#include "planner/baselines/interleaved.h"

namespace pipeloom::planner {

std::unique_ptr<Strategy> MakeMegatron() {
  return std::make_unique<BaselineStrategy>("megatron", /*max_chunks=*/2,
                                            partition::LayerWeight::kParameters,
                                            InterleavedOrders);
}

}  // namespace pipeloom::planner
