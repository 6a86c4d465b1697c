#include "planner/baselines/baseline_strategy.h"

#include <utility>

#include "base/status_macros.h"
#include "planner/lower_bound.h"

namespace pipeloom::planner {

BaselineStrategy::BaselineStrategy(absl::string_view name, int32_t max_chunks,
                                   partition::LayerWeight weight,
                                   OrderRule rule)
    : name_(name),
      max_chunks_(max_chunks),
      weight_(weight),
      rule_(std::move(rule)) {}

absl::StatusOr<Partition> BaselineStrategy::MakePartition(
    const emulator::StageCostModel& costs, const BatchMetadata&) const {
  const JobSpec& job = costs.job();
  int32_t layers = 0;
  for (const ModuleSpec& module : job.model.modules) {
    for (const LayerSpec& layer : module.layers) {
      layers += layer.kind == LayerKind::kTransformer ||
                layer.kind == LayerKind::kFixedWork;
    }
  }
  int32_t chunks = max_chunks_;
  while (chunks > 1 && layers < chunks * job.parallel.pp) --chunks;
  return partition::ConcatenatedPartition(job, chunks, weight_);
}

absl::StatusOr<SearchResult> BaselineStrategy::MakeSchedule(
    const StageGraph& graph, const Partition& partition, uint64_t,
    const SearchBudget&) const {
  PIPELOOM_ASSIGN_OR_RETURN(RankOrders orders,
                            rule_(VirtualPipeline(graph, partition)));
  SearchResult result;
  PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                            TimeBaseline(graph, std::move(orders)));
  result.lower_bound = LowerBound(graph);
  result.evaluations = 1;
  result.proven_optimal = result.schedule.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
