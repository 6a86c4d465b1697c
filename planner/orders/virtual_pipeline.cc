#include "planner/orders/virtual_pipeline.h"

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
  const size_t cells = size_t{2} * static_cast<size_t>(num_ranks()) *
                       static_cast<size_t>(num_segments_) *
                       static_cast<size_t>(num_microbatches_);
  std::vector<uint32_t> cell_of;
  cell_of.reserve(static_cast<size_t>(graph_->num_tasks()));
  offset_.assign(cells + 2, 0);
  for (const Task& task : graph_->tasks()) {
    const int32_t segment = segment_of[task.stage];
    PIPELOOM_CHECK(segment >= 0 && task.microbatch.value() >= 0);
    const size_t cell = IndexOf(task.pass != Pass::kForward, task.rank, segment,
                                task.microbatch.value());
    cell_of.push_back(static_cast<uint32_t>(cell));
    ++offset_[cell + 2];
  }
  // While filling, offset_[c + 1] is where the next task of cell c goes.
  for (size_t c = 2; c < offset_.size(); ++c) offset_[c] += offset_[c - 1];
  tasks_.resize(cell_of.size());
  for (const TaskId t : graph_->task_ids()) {
    tasks_[offset_[cell_of[static_cast<size_t>(t.value())] + 1]++] = t;
  }
}

size_t VirtualPipeline::IndexOf(bool backward, RankId rank, int32_t segment,
                                int32_t microbatch) const {
  return ((static_cast<size_t>(microbatch) * static_cast<size_t>(num_ranks()) +
           static_cast<size_t>(rank.value())) *
              static_cast<size_t>(num_segments_) +
          static_cast<size_t>(segment)) *
             2 +
         (backward ? 1 : 0);
}

absl::Span<const TaskId> VirtualPipeline::Cell(bool backward, RankId rank,
                                               int32_t segment,
                                               int32_t microbatch) const {
  if (segment < 0 || segment >= num_segments_ || microbatch < 0 ||
      microbatch >= num_microbatches_) {
    return {};
  }
  const size_t cell = IndexOf(backward, rank, segment, microbatch);
  return absl::MakeConstSpan(tasks_).subspan(offset_[cell],
                                             offset_[cell + 1] - offset_[cell]);
}

void VirtualPipeline::AppendForward(RankId rank, int32_t segment,
                                    int32_t microbatch,
                                    std::vector<TaskId>* order) const {
  for (const TaskId t : Cell(false, rank, segment, microbatch)) {
    order->push_back(t);
  }
}

void VirtualPipeline::AppendBackward(RankId rank, int32_t segment,
                                     int32_t microbatch,
                                     std::vector<TaskId>* order) const {
  for (const TaskId t : Cell(true, rank, segment, microbatch)) {
    order->push_back(t);
  }
}

void VirtualPipeline::Append(Pass pass, RankId rank, int32_t segment,
                             int32_t microbatch,
                             std::vector<TaskId>* order) const {
  for (const TaskId t :
       Cell(pass != Pass::kForward, rank, segment, microbatch)) {
    if (graph_->task(t).pass == pass) order->push_back(t);
  }
}

absl::StatusOr<Schedule> TimeBaseline(const StageGraph& graph,
                                      RankOrders orders) {
  PIPELOOM_ASSIGN_OR_RETURN(Schedule schedule,
                            TimeSchedule(graph, std::move(orders)));
  for (const RankId r : graph.rank_ids()) {
    const Bytes limit = graph.rank(r).memory.limit;
    if (limit == Bytes(0) || schedule.peak[r] <= limit) continue;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "rank %d: this order needs %s, %s over the limit of %s", r.value(),
        FormatBytes(schedule.peak[r]), FormatBytes(schedule.peak[r] - limit),
        FormatBytes(limit)));
  }
  return schedule;
}

}  // namespace pipeloom::planner
