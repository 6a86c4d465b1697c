#include "planner/strategies/baseline_strategy.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/orders/weight_grad_room.h"
#include "planner/strategies/representative_step.h"

namespace pipeloom::planner {
BaselineStrategy::BaselineStrategy(absl::string_view name, Traits traits,
                                   OrderRule rule)
    : name_(name), traits_(std::move(traits)), rule_(std::move(rule)) {}

BaselineStrategy::BaselineStrategy(absl::string_view name, int32_t max_chunks,
                                   partition::LayerWeight weight,
                                   OrderRule rule)
    : BaselineStrategy(name, {.max_chunks = max_chunks, .weights = {weight}},
                       std::move(rule)) {}

absl::StatusOr<Partition> BaselineStrategy::MakePartition(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    const std::stop_token&) const {
  const JobSpec& job = costs.job();
  int32_t layers = 0;
  for (const ModuleSpec& module : job.model.modules) {
    for (const LayerSpec& layer : module.layers) {
      layers += layer.kind == LayerKind::kTransformer ||
                layer.kind == LayerKind::kFixedWork;
    }
  }
  int32_t chunks = traits_.max_chunks;
  while (chunks > 1 && layers < chunks * job.parallel.pp) --chunks;
  std::vector<Partition> partitions;
  for (const partition::LayerWeight weight : traits_.weights) {
    PIPELOOM_ASSIGN_OR_RETURN(
        Partition partition,
        partition::ConcatenatedPartition(job, chunks, weight));
    if (traits_.shape == Shape::kVee) {
      for (Stage& stage : partition.stages) {
        if (stage.segment.value() % 2 == 0) continue;
        stage.rank = RankId(partition.num_ranks - 1 - stage.rank.value());
      }
    }
    partitions.push_back(std::move(partition));
  }
  if (partitions.size() == 1) return std::move(partitions.front());
  PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep step,
                            RepresentativeStep::Create(costs, sample));
  PIPELOOM_ASSIGN_OR_RETURN(const size_t best, step.Fastest(*this, partitions));
  return std::move(partitions[best]);
}

absl::StatusOr<SearchResult> BaselineStrategy::MakeSchedule(
    const StageGraph& graph, const Partition& partition, uint64_t,
    const SearchBudget&) const {
  PIPELOOM_ASSIGN_OR_RETURN(RankOrders orders,
                            rule_(VirtualPipeline(graph, partition)));
  if (traits_.split_backward) MakeRoomByWeightGrads(graph, &orders);
  SearchResult result;
  absl::StatusOr<Schedule> schedule = TimeBaseline(graph, std::move(orders));
  if (absl::IsFailedPrecondition(schedule.status())) {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, " cannot run on this partition",
        traits_.shape == Shape::kVee
            ? ", only on one whose stages go along the ranks and back: "
            : ": ",
        std::string(schedule.status().message())));
  }
  PIPELOOM_RETURN_IF_ERROR(schedule.status());
  result.schedule = *std::move(schedule);
  result.lower_bound = LowerBound(graph);
  result.evaluations = 1;
  result.proven_optimal = result.schedule.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
