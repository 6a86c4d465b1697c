#include "planner/strategies/optimus.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/strategies/representative_step.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kChunks = 2;
// Bisections for the earliest possible start of the backbone.
constexpr int kHalvings = 14;

// A graph of some tasks of another.
struct Subgraph {
  StageGraph graph{};
  IdVector<TaskId, TaskId> original{};
};

absl::StatusOr<Subgraph> WithoutEncoders(
    const StageGraph& graph, const IdVector<TaskId, bool>& is_encoder) {
  Subgraph sub;
  IdVector<TaskId, TaskId> renamed(graph.num_tasks());
  IdVector<TaskId, Task> tasks;
  for (const TaskId t : graph.task_ids()) {
    if (is_encoder[t]) continue;
    renamed[t] = tasks.push_back(graph.task(t));
    sub.original.push_back(t);
  }
  IdVector<EdgeId, Dependency> edges;
  for (Dependency edge : graph.edges()) {
    edge.from = renamed[edge.from];
    edge.to = renamed[edge.to];
    if (!edge.from.is_none() && !edge.to.is_none()) edges.push_back(edge);
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      sub.graph,
      StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                         std::move(tasks), std::move(edges)));
  return sub;
}

// The times at which a rank is busy, without overlaps.
class RankTimeline {
 public:
  // Appends an interval. REQUIRES: it is after everything added before.
  void Append(SimTime start, Duration length) {
    busy_.push_back({start, start + length});
  }
  // Inserts `length` at the first free interval from `from` on that holds it;
  // returns its start.
  SimTime Insert(SimTime from, Duration length) {
    // The first interval that ends after `from`: all before it are over by
    // then.
    size_t i = static_cast<size_t>(
        std::partition_point(busy_.begin(), busy_.end(),
                             [&](const Busy& b) { return b.end <= from; }) -
        busy_.begin());
    SimTime start = from;
    for (; i < busy_.size() && busy_[i].start < start + length; ++i) {
      start = std::max(start, busy_[i].end);
    }
    busy_.insert(busy_.begin() + static_cast<std::ptrdiff_t>(i),
                 {start, start + length});
    return start;
  }

 private:
  struct Busy {
    SimTime start{};
    SimTime end{};
  };
  std::vector<Busy> busy_{};
};

// A placement of everything in which the backbone starts at `offset`.
class Timeline {
 public:
  Timeline(const StageGraph& graph, const IdVector<TaskId, bool>& is_encoder,
           const Subgraph& backbone, const Schedule& alone, Duration offset)
      : graph_(&graph),
        is_encoder_(&is_encoder),
        start_(graph.num_tasks()),
        ranks_(graph.num_ranks()) {
    for (const RankId r : alone.order.ids()) {
      for (const TaskId t : alone.order[r]) {
        start_[backbone.original[t]] = alone.start[t] + offset;
        ranks_[r].Append(alone.start[t] + offset,
                         backbone.graph.task(t).duration);
      }
    }
  }

  // Inserts all encoder tasks of these passes in the order of microbatches;
  // within one, task ids are a topological order.
  void InsertEncoders(bool forward) {
    std::vector<TaskId> tasks;
    for (const TaskId t : graph_->task_ids()) {
      if ((*is_encoder_)[t] &&
          (graph_->task(t).pass == Pass::kForward) == forward) {
        tasks.push_back(t);
      }
    }
    std::stable_sort(tasks.begin(), tasks.end(), [&](TaskId a, TaskId b) {
      return graph_->task(a).microbatch < graph_->task(b).microbatch;
    });
    for (const TaskId t : tasks) {
      const Task& task = graph_->task(t);
      start_[t] = ranks_[task.rank].Insert(Arrival(t), task.duration);
    }
  }

  // Returns whether no task of the backbone starts before an encoder's output
  // has arrived.
  bool InTime() const {
    for (const TaskId t : graph_->task_ids()) {
      if (!(*is_encoder_)[t] && Arrival(t) > start_[t]) return false;
    }
    return true;
  }

  // Returns when the last encoder forward's output has arrived.
  SimTime ForwardsDone() const {
    SimTime done = kStepStart;
    for (const Dependency& edge : graph_->edges()) {
      const Task& task = graph_->task(edge.from);
      if (!(*is_encoder_)[edge.from] || task.pass != Pass::kForward) continue;
      done = std::max(done, start_[edge.from] + task.duration + edge.delay);
    }
    return done;
  }

  RankOrders Orders() const {
    RankOrders orders(graph_->num_ranks());
    for (const TaskId t : graph_->task_ids()) {
      orders[graph_->task(t).rank].push_back(t);
    }
    for (std::vector<TaskId>& order : orders) {
      std::sort(order.begin(), order.end(), [&](TaskId a, TaskId b) {
        return std::tie(start_[a], a) < std::tie(start_[b], b);
      });
    }
    return orders;
  }

 private:
  // Returns when the inputs of the task have arrived.
  SimTime Arrival(TaskId t) const {
    SimTime arrival = kStepStart;
    for (const EdgeId e : graph_->incoming(t)) {
      const Dependency& edge = graph_->edge(e);
      arrival =
          std::max(arrival, start_[edge.from] +
                                graph_->task(edge.from).duration + edge.delay);
    }
    return arrival;
  }

  const StageGraph* graph_;
  const IdVector<TaskId, bool>* is_encoder_;
  IdVector<TaskId, SimTime> start_;
  IdVector<RankId, RankTimeline> ranks_;
};

class Optimus : public Strategy {
 public:
  absl::string_view name() const override { return "optimus"; }
  bool split_backward() const override { return false; }

  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override {
    PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep step,
                              RepresentativeStep::Create(costs, sample, stop));
    const JobSpec& job = costs.job();
    const int32_t p = job.parallel.pp;
    std::vector<partition::LayerUnit> encoders;
    std::vector<partition::LayerUnit> others;
    for (const partition::LayerUnit& unit : step.units()) {
      const bool leading =
          others.empty() &&
          job.model.modules[unit.module].role == ModuleRole::kEncoder;
      (leading ? encoders : others).push_back(unit);
    }
    Partition partition;
    partition.num_ranks = p;
    partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
    if (!encoders.empty()) partition::AppendStages(encoders, p, &partition);
    partition.num_segments = 1;
    if (!others.empty()) {
      const auto layers = static_cast<int32_t>(others.size());
      partition::AppendStages(others, layers < kChunks * p ? p : kChunks * p,
                              &partition);
    }
    return partition;
  }

  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t,
      const SearchBudget&) const override {
    PIPELOOM_ASSIGN_OR_RETURN(RankOrders orders,
                              OptimusOrders(graph, partition));
    SearchResult result;
    PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                              TimeBaseline(graph, std::move(orders)));
    result.lower_bound = LowerBound(graph);
    result.evaluations = 1;
    result.proven_optimal = result.schedule.step_time() == result.lower_bound;
    return result;
  }
};

}  // namespace

absl::StatusOr<RankOrders> OptimusOrders(const StageGraph& graph,
                                         const Partition& partition) {
  IdVector<TaskId, bool> is_encoder(graph.num_tasks());
  for (const TaskId t : graph.task_ids()) {
    is_encoder[t] =
        partition.stages[graph.task(t).stage].segment == SegmentId(0);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const Subgraph backbone,
                            WithoutEncoders(graph, is_encoder));
  Partition shifted = partition;
  for (Stage& stage : shifted.stages) {
    stage.segment = SegmentId(std::max(0, stage.segment.value() - 1));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      RankOrders backbone_orders,
      InterleavedOrders(VirtualPipeline(backbone.graph, shifted)));
  PIPELOOM_ASSIGN_OR_RETURN(
      const Schedule alone,
      TimeSchedule(backbone.graph, std::move(backbone_orders)));

  // Longer than all encoder forwards one after another.
  Duration late_enough = kZero;
  for (const TaskId t : graph.task_ids()) {
    if (is_encoder[t]) late_enough += graph.task(t).duration;
  }
  for (const Dependency& edge : graph.edges()) late_enough += edge.delay;
  Timeline timeline(graph, is_encoder, backbone, alone, late_enough);
  timeline.InsertEncoders(/*forward=*/true);
  late_enough = timeline.ForwardsDone() - kStepStart;

  Duration too_early = kZero - Nanoseconds(1);
  for (int i = 0; i <= kHalvings && too_early + Nanoseconds(1) < late_enough;
       ++i) {
    const Duration offset =
        i == 0 ? kZero : too_early + (late_enough - too_early) / 2;
    Timeline earlier(graph, is_encoder, backbone, alone, offset);
    earlier.InsertEncoders(/*forward=*/true);
    if (earlier.InTime()) {
      late_enough = offset;
      timeline = std::move(earlier);
    } else {
      too_early = offset;
    }
  }
  timeline.InsertEncoders(/*forward=*/false);
  return timeline.Orders();
}

std::unique_ptr<Strategy> MakeOptimus() { return std::make_unique<Optimus>(); }

}  // namespace pipeloom::planner
