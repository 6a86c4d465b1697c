#include "planner/trainer/rival_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/plan/partition.h"
#include "ir/plan/schedule.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/trainer/cell_graph.h"

namespace pipeloom::planner {
namespace {

// Returns the cells as stages of a partition.
Partition CellPartition(const StageGraph& cells) {
  int32_t num_cells = 0;
  for (const Task& task : cells.tasks()) {
    num_cells = std::max(num_cells, task.stage.value() + 1);
  }
  Partition partition;
  partition.num_ranks = cells.num_ranks();
  partition.num_segments = num_cells / cells.num_ranks();
  partition.stages = IdVector<StageId, Stage>(num_cells);
  for (const Task& task : cells.tasks()) {
    Stage& stage = partition.stages[task.stage];
    stage.module = task.module;
    stage.rank = task.rank;
    stage.segment = SegmentId(task.stage.value() / cells.num_ranks());
  }
  return partition;
}

}  // namespace

absl::Status CheckRival(const TrainerLimits& trainer, const Strategy& rival) {
  if (rival.chooses_memory()) {
    return CannotExecute(
        trainer, absl::StrCat("strategy ", rival.name(),
                              " chooses memory for each stage and microbatch; "
                              "the trainer sets it once, at launch"));
  }
  if (rival.split_backward() && !trainer.split_backward) {
    return CannotExecute(
        trainer, absl::StrCat("strategy ", rival.name(),
                              " runs weight gradients apart from backwards, "
                              "which the trainer does not"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SearchResult> RivalOrder(const StageGraph& cells,
                                        const TrainerLimits& trainer,
                                        const Strategy& rival, uint64_t seed,
                                        const SearchBudget& budget) {
  PIPELOOM_ASSIGN_OR_RETURN(
      SearchResult found,
      rival.MakeSchedule(cells, CellPartition(cells), seed, budget));
  const RankOrders& order = found.schedule.order;
  if (trainer.order == PassOrder::kOneForwardOrder &&
      !HasOneForwardOrder(cells, order)) {
    return CannotExecute(
        trainer, absl::StrCat("strategy ", rival.name(),
                              " has another order of microbatches on some "
                              "stages; the trainer has one"));
  }
  if ((trainer.one_loss || IsPlain(trainer, cells.num_ranks())) &&
      !HasOneLoss(cells, order)) {
    return CannotExecute(
        trainer, absl::StrCat("strategy ", rival.name(),
                              " goes forward twice before a backward on the "
                              "last stage, where the trainer keeps one loss"));
  }
  if (trainer.order == PassOrder::kStock) {
    PIPELOOM_ASSIGN_OR_RETURN(const RankOrders stock,
                              StockOrders(VirtualPipeline(cells)));
    if (order != stock) {
      return CannotExecute(
          trainer, absl::StrCat("strategy ", rival.name(),
                                " has another order of passes; the trainer's "
                                "are 1F1B and its own interleaved one"));
    }
  }
  return found;
}

}  // namespace pipeloom::planner
