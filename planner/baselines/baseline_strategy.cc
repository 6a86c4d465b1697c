#include "planner/baselines/baseline_strategy.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/baselines/representative_step.h"
#include "planner/lower_bound.h"

namespace pipeloom::planner {
namespace {

// Puts weight gradients whose backward is done, oldest first, before a task
// that the rank would have no room for otherwise. No other task waits for a
// weight gradient, so orders stay legal.
void MakeRoomByWeightGrads(const StageGraph& graph, RankOrders* orders) {
  for (const RankId r : orders->ids()) {
    const RankMemory& memory = graph.rank(r).memory;
    if (memory.limit == Bytes(0)) continue;
    std::vector<TaskId>& order = (*orders)[r];
    IdVector<TaskId, bool> done(graph.num_tasks(), false);
    std::vector<TaskId> due;  // Weight gradients, from `first_due` on.
    size_t first_due = 0;
    std::vector<TaskId> roomy;
    Bytes held = memory.static_bytes();
    const auto run = [&](TaskId t) {
      if (done[t]) return;
      done[t] = true;
      held += graph.task(t).alloc - graph.task(t).free;
      roomy.push_back(t);
      if (graph.task(t).pass != Pass::kBackward) return;
      for (const EdgeId e : graph.outgoing(t)) {
        const TaskId next = graph.edge(e).to;
        if (graph.task(next).pass == Pass::kWeightGrad &&
            graph.task(next).rank == r) {
          due.push_back(next);
        }
      }
    };
    for (const TaskId t : order) {
      while (held + graph.task(t).alloc > memory.limit &&
             first_due < due.size()) {
        run(due[first_due++]);
      }
      run(t);
    }
    order = std::move(roomy);
  }
}

}  // namespace

BaselineStrategy::BaselineStrategy(absl::string_view name, Traits traits,
                                   OrderRule rule)
    : name_(name), traits_(std::move(traits)), rule_(std::move(rule)) {}

BaselineStrategy::BaselineStrategy(absl::string_view name, int32_t max_chunks,
                                   partition::LayerWeight weight,
                                   OrderRule rule)
    : BaselineStrategy(name, {.max_chunks = max_chunks, .weights = {weight}},
                       std::move(rule)) {}

absl::StatusOr<Partition> BaselineStrategy::MakePartition(
    const emulator::StageCostModel& costs, const BatchMetadata& sample) const {
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
  PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                            TimeBaseline(graph, std::move(orders)));
  result.lower_bound = LowerBound(graph);
  result.evaluations = 1;
  result.proven_optimal = result.schedule.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
