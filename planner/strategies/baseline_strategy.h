// A strategy with one fixed order for concatenated modules: the common part of
// the classic schedules.
#ifndef PIPELOOM_PLANNER_STRATEGIES_BASELINE_STRATEGY_H_
#define PIPELOOM_PLANNER_STRATEGIES_BASELINE_STRATEGY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/placement/placement.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// A strategy that makes one evaluation. With a split backward, it runs weight
// gradients before a task for which the rank's memory limit has no room
// otherwise, as in the zero-bubble heuristics. Returns ResourceExhausted if
// memory is over a limit even so.
class BaselineStrategy : public Strategy {
 public:
  // Makes the orders of a pipeline.
  using OrderRule =
      std::function<absl::StatusOr<RankOrders>(const VirtualPipeline&)>;

  enum class Shape {
    kLooped,  // Every segment goes from the first rank to the last.
    kVee,     // Odd segments go back from the last rank to the first.
  };
  // The differences between the classic schedules, apart from their orders.
  struct Traits {
    // The most segments; fewer if the model does not have a layer for each of
    // their stages.
    int32_t max_chunks = 1;
    // The ways to balance layers. The one that plans the sample's median step
    // fastest is taken; the first if there is only one or no plan fits.
    std::vector<partition::LayerWeight> weights = {
        partition::LayerWeight::kCount};
    Shape shape = Shape::kLooped;
    bool split_backward = false;
  };
  BaselineStrategy(absl::string_view name, Traits traits, OrderRule rule);
  // Makes a looped strategy whose backward is not split.
  BaselineStrategy(absl::string_view name, int32_t max_chunks,
                   partition::LayerWeight weight, OrderRule rule);

  absl::string_view name() const override { return name_; }
  bool split_backward() const override { return traits_.split_backward; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override;
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override;

 private:
  absl::string_view name_;
  Traits traits_;
  OrderRule rule_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_BASELINE_STRATEGY_H_
