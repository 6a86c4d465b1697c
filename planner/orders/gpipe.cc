#include "planner/orders/gpipe.h"

namespace pipeloom::planner {

RankOrders GPipeOrders(const VirtualPipeline& pipeline) {
  RankOrders orders(pipeline.num_ranks());
  for (const RankId r : orders.ids()) {
    for (int32_t s = 0; s < pipeline.num_segments(); ++s) {
      for (int32_t m = 0; m < pipeline.num_microbatches(); ++m) {
        pipeline.AppendForward(r, s, m, &orders[r]);
      }
    }
    for (int32_t s = pipeline.num_segments(); s-- > 0;) {
      for (int32_t m = pipeline.num_microbatches(); m-- > 0;) {
        pipeline.AppendBackward(r, s, m, &orders[r]);
      }
    }
  }
  return orders;
}

}  // namespace pipeloom::planner
