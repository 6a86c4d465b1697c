// The strategies whose plans the formats of others can say, on uniform chains.
#ifndef PIPELOOM_TESTS_ADAPTERS_STRATEGIES_H_
#define PIPELOOM_TESTS_ADAPTERS_STRATEGIES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "planner/orders/dual_pipe_v.h"
#include "planner/orders/gpipe.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/v_schedule.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/orders/zero_bubble_h1.h"
#include "planner/orders/zero_bubble_v.h"

namespace pipeloom::testing {

struct Strategy {
  std::string name{};
  bool vee = false;
  bool split = false;
  int32_t chunks = 1;
  absl::StatusOr<RankOrders> (*orders)(const planner::VirtualPipeline&) =
      nullptr;
};

inline const std::vector<Strategy>& Strategies() {
  using planner::VirtualPipeline;
  static const auto* const strategies = new std::vector<Strategy>{
      {"gpipe", false, false, 1,
       [](const VirtualPipeline& p) -> absl::StatusOr<RankOrders> {
         return planner::GPipeOrders(p);
       }},
      {"1f1b", false, false, 1, planner::OneFOneBOrders},
      {"interleaved", false, false, 2, planner::InterleavedOrders},
      {"zb-h1", false, true, 1, planner::ZeroBubbleH1Orders},
      {"zb-v", true, true, 2, planner::ZeroBubbleVOrders},
      {"v-half", true, true, 2,
       [](const VirtualPipeline& p) {
         return planner::VScheduleOrders(planner::VMemory::kHalf, p);
       }},
      {"v-min", true, true, 2,
       [](const VirtualPipeline& p) {
         return planner::VScheduleOrders(planner::VMemory::kMin, p);
       }},
      {"dualpipe-v", true, true, 2, planner::DualPipeVOrders},
  };
  return *strategies;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ADAPTERS_STRATEGIES_H_
