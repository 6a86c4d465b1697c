#include "planner/strategies/classic.h"

#include <utility>

#include "planner/orders/dual_pipe_v.h"
#include "planner/orders/gpipe.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/v_schedule.h"
#include "planner/orders/zero_bubble_h1.h"
#include "planner/orders/zero_bubble_v.h"
#include "planner/strategies/baseline_strategy.h"

namespace pipeloom::planner {
namespace {

using partition::LayerWeight;

std::unique_ptr<Strategy> Fused(absl::string_view name, int32_t max_chunks,
                                LayerWeight weight,
                                BaselineStrategy::OrderRule rule) {
  return std::make_unique<BaselineStrategy>(name, max_chunks, weight,
                                            std::move(rule));
}

std::unique_ptr<Strategy> Split(absl::string_view name, int32_t max_chunks,
                                BaselineStrategy::OrderRule rule) {
  return std::make_unique<BaselineStrategy>(
      name,
      BaselineStrategy::Traits{
          .max_chunks = max_chunks,
          .weights = {LayerWeight::kCount, LayerWeight::kParameters},
          .shape = max_chunks > 1 ? BaselineStrategy::Shape::kVee
                                  : BaselineStrategy::Shape::kLooped,
          .split_backward = true},
      std::move(rule));
}

BaselineStrategy::OrderRule VRule(VMemory memory) {
  return [memory](const VirtualPipeline& pipeline) {
    return VScheduleOrders(memory, pipeline);
  };
}

}  // namespace

std::unique_ptr<Strategy> MakeGPipe() {
  return Fused("gpipe", 1, LayerWeight::kCount, GPipeOrders);
}
std::unique_ptr<Strategy> MakeOneFOneB() {
  return Fused("1f1b", 1, LayerWeight::kCount, OneFOneBOrders);
}
std::unique_ptr<Strategy> MakeInterleaved() {
  return Fused("interleaved", 2, LayerWeight::kCount, InterleavedOrders);
}
std::unique_ptr<Strategy> MakeMegatron() {
  return Fused("megatron", 2, LayerWeight::kParameters, InterleavedOrders);
}
std::unique_ptr<Strategy> MakeZeroBubbleH1() {
  return Split("zb-h1", 1, ZeroBubbleH1Orders);
}

std::unique_ptr<Strategy> MakeZeroBubble2p() {
  return Split("zb-2p", 1, ZeroBubble2pOrders);
}
std::unique_ptr<Strategy> MakeZeroBubbleV() {
  return Split("zb-v", 2, ZeroBubbleVOrders);
}
std::unique_ptr<Strategy> MakeDualPipeV() {
  return Split("dualpipe-v", 2, DualPipeVOrders);
}
std::unique_ptr<Strategy> MakeVHalf() {
  return Split("v-half", 2, VRule(VMemory::kHalf));
}
std::unique_ptr<Strategy> MakeVMin() {
  return Split("v-min", 2, VRule(VMemory::kMin));
}

}  // namespace pipeloom::planner
