// A StageGraph seen as the pipeline that the classic schedules are made for:
// every microbatch passes segments x ranks cells forward and then back.
//
//     cell (segment, rank)   rank 0   rank 1   rank 2
//     segment 0                .  ---->  .  ---->  .
//                              .-------------------'
//     segment 1                '->.  ---->  .  ---->  .
//
// A cell holds the tasks of one microbatch and direction there, in id order:
// none if the microbatch lacks the module, several if modules meet on a rank or
// the backward is split (each weight gradient follows its backward).
#ifndef PIPELOOM_PLANNER_ORDERS_VIRTUAL_PIPELINE_H_
#define PIPELOOM_PLANNER_ORDERS_VIRTUAL_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/partition.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// The cells of a graph. Keeps a reference to it.
class VirtualPipeline {
 public:
  // Puts stage s into segment s / ranks; for graphs without a Partition.
  explicit VirtualPipeline(const StageGraph& graph);
  VirtualPipeline(const StageGraph& graph, const Partition& partition);

  const StageGraph& graph() const { return *graph_; }
  int32_t num_ranks() const { return graph_->num_ranks(); }
  int32_t num_segments() const { return num_segments_; }
  int32_t num_microbatches() const { return num_microbatches_; }

  // Appends the cell's forward tasks; nothing for a microbatch or cell that
  // does not exist.
  void AppendForward(RankId rank, int32_t segment, int32_t microbatch,
                     std::vector<TaskId>* order) const;
  // Appends the cell's backward tasks with the weight gradients.
  void AppendBackward(RankId rank, int32_t segment, int32_t microbatch,
                      std::vector<TaskId>* order) const;
  // Appends only those of the cell's tasks that are of one pass.
  void Append(Pass pass, RankId rank, int32_t segment, int32_t microbatch,
              std::vector<TaskId>* order) const;

 private:
  void Fill(const IdVector<StageId, int32_t>& segment_of);
  size_t IndexOf(bool backward, RankId rank, int32_t segment,
                 int32_t microbatch) const;
  // Returns the cell's tasks; none for a cell that does not exist.
  absl::Span<const TaskId> Cell(bool backward, RankId rank, int32_t segment,
                                int32_t microbatch) const;

  const StageGraph* graph_;
  int32_t num_segments_ = 0;
  int32_t num_microbatches_ = 0;
  // Compressed rows: cell c is tasks_[offset_[c], offset_[c + 1]).
  std::vector<TaskId> tasks_{};
  std::vector<uint32_t> offset_{};
};

// Times the orders of a classic schedule. ResourceExhausted names the rank, and
// the bytes over its limit.
absl::StatusOr<Schedule> TimeBaseline(const StageGraph& graph,
                                      RankOrders orders);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_VIRTUAL_PIPELINE_H_
