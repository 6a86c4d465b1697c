#include "planner/baselines/virtual_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::planner {

VirtualPipeline::VirtualPipeline(const StageGraph& graph) : graph_(&graph) {
  int32_t num_stages = 0;
  for (const Task& task : graph.tasks()) {
    num_stages = std::max(num_stages, task.stage.value() + 1);
  }
  IdVector<StageId, int32_t> segment_of(num_stages);
  for (const StageId s : segment_of.ids()) {
    segment_of[s] = s.value() / std::max(1, graph.num_ranks());
  }
  Fill(segment_of);
}

VirtualPipeline::VirtualPipeline(const StageGraph& graph,
                                 const Partition& partition)
    : graph_(&graph) {
  IdVector<StageId, int32_t> segment_of(partition.stages.size());
  for (const StageId s : segment_of.ids()) {
    segment_of[s] = partition.stages[s].segment.value();
  }
  Fill(segment_of);
}

void VirtualPipeline::Fill(const IdVector<StageId, int32_t>& segment_of) {
  for (const int32_t segment : segment_of) {
    num_segments_ = std::max(num_segments_, segment + 1);
  }
  for (const Task& task : graph_->tasks()) {
    num_microbatches_ =
        std::max(num_microbatches_, task.microbatch.value() + 1);
  }
  cells_.resize(size_t{2} * static_cast<size_t>(num_ranks()) *
                static_cast<size_t>(num_segments_) *
                static_cast<size_t>(num_microbatches_));
  for (const TaskId t : graph_->task_ids()) {
    const Task& task = graph_->task(t);
    const auto* cell = Cell(task.pass != Pass::kForward, task.rank,
                            segment_of[task.stage], task.microbatch.value());
    PIPELOOM_CHECK(cell != nullptr);
    cells_[static_cast<size_t>(cell - cells_.data())].push_back(t);
  }
}

const std::vector<TaskId>* VirtualPipeline::Cell(bool backward, RankId rank,
                                                 int32_t segment,
                                                 int32_t microbatch) const {
  if (segment < 0 || segment >= num_segments_ || microbatch < 0 ||
      microbatch >= num_microbatches_) {
    return nullptr;
  }
  const auto index =
      ((static_cast<size_t>(microbatch) * static_cast<size_t>(num_ranks()) +
        static_cast<size_t>(rank.value())) *
           static_cast<size_t>(num_segments_) +
       static_cast<size_t>(segment)) *
          2 +
      (backward ? 1 : 0);
  return &cells_[index];
}

void VirtualPipeline::AppendForward(RankId rank, int32_t segment,
                                    int32_t microbatch,
                                    std::vector<TaskId>* order) const {
  const auto* cell = Cell(false, rank, segment, microbatch);
  if (cell == nullptr) return;
  order->insert(order->end(), cell->begin(), cell->end());
}

void VirtualPipeline::AppendBackward(RankId rank, int32_t segment,
                                     int32_t microbatch,
                                     std::vector<TaskId>* order) const {
  const auto* cell = Cell(true, rank, segment, microbatch);
  if (cell == nullptr) return;
  order->insert(order->end(), cell->begin(), cell->end());
}

void VirtualPipeline::Append(Pass pass, RankId rank, int32_t segment,
                             int32_t microbatch,
                             std::vector<TaskId>* order) const {
  const auto* cell = Cell(pass != Pass::kForward, rank, segment, microbatch);
  if (cell == nullptr) return;
  for (const TaskId t : *cell) {
    if (graph_->task(t).pass == pass) order->push_back(t);
  }
}

absl::StatusOr<Schedule> TimeBaseline(const StageGraph& graph,
                                      RankOrders orders) {
  PIPELOOM_ASSIGN_OR_RETURN(Schedule schedule,
                            TimeSchedule(graph, std::move(orders)));
  Bytes smallest;
  for (const Bytes peak : schedule.peak) smallest = std::max(smallest, peak);
  for (const RankId r : graph.rank_ids()) {
    const Bytes limit = graph.rank(r).memory.limit;
    if (limit == Bytes(0) || schedule.peak[r] <= limit) continue;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "rank %d: this order needs %d B, %d B over the limit of %d B; it "
        "needs a limit of %d B on every rank",
        r.value(), schedule.peak[r].count(), (schedule.peak[r] - limit).count(),
        limit.count(), smallest.count()));
  }
  return schedule;
}

}  // namespace pipeloom::planner
