// A strategy with one fixed order for concatenated modules: what the classic
// schedules have in common.
#ifndef PIPELOOM_PLANNER_BASELINES_BASELINE_STRATEGY_H_
#define PIPELOOM_PLANNER_BASELINES_BASELINE_STRATEGY_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/placement.h"
#include "planner/baselines/virtual_pipeline.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Backward is not split. One evaluation; memory over a limit is
// ResourceExhausted.
class BaselineStrategy : public Strategy {
 public:
  using OrderRule =
      std::function<absl::StatusOr<RankOrders>(const VirtualPipeline&)>;

  // At most `max_chunks` segments; fewer when the model has not a layer for
  // each of their stages.
  BaselineStrategy(absl::string_view name, int32_t max_chunks,
                   partition::LayerWeight weight, OrderRule rule);

  absl::string_view name() const override { return name_; }
  bool split_backward() const override { return false; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs,
      const BatchMetadata& sample) const override;
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override;

 private:
  absl::string_view name_;
  int32_t max_chunks_;
  partition::LayerWeight weight_;
  OrderRule rule_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BASELINES_BASELINE_STRATEGY_H_
