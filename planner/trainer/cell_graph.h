// A step as a trainer runs it: a task for each pass of a trainer's stage (a
// cell) on a microbatch. Stages of several modules that meet in a cell run one
// after another, so they are one task here; an order of the cells is turned
// back into one of the step's own tasks.
#ifndef PIPELOOM_PLANNER_TRAINER_CELL_GRAPH_H_
#define PIPELOOM_PLANNER_TRAINER_CELL_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

struct CellGraph {
  StageGraph graph{};  // Stages are cells, numbered along the chain.
  // Indexed by task of `graph`: the step's tasks, in the order they run.
  IdVector<TaskId, std::vector<TaskId>> parts{};
  // Indexed by the step's task.
  IdVector<TaskId, TaskId> cell_of{};
};

// An order that dependencies without delay hold.
struct CellOrder {
  bool forwards = false;  // All cells go forward as microbatches are numbered.
  // The last cell also goes back through each before the next one's forward.
  bool one_loss = false;
};

// Makes the cells of a step, within the step's limits. `cell_of`: the cell of
// each stage; the cell's module is that of its last stage. `microbatches`: the
// order in which they are numbered. Empty: as they are. REQUIRES: every
// cell has the same passes of every microbatch; cells are numbered along a
// chain.
absl::StatusOr<CellGraph> MakeCells(const StageGraph& step,
                                    const IdVector<StageId, int32_t>& cell_of,
                                    const std::vector<int32_t>& microbatches,
                                    const CellOrder& order);

// Returns the order of the step's tasks.
RankOrders PartsOf(const CellGraph& cells, const RankOrders& orders);
// Returns the order of the cells; each begins with its first part.
RankOrders CellsOf(const CellGraph& cells, const RankOrders& orders);

// Returns the microbatches in the order in which the first cell goes forward.
std::vector<int32_t> ForwardOrder(const StageGraph& cells,
                                  const RankOrders& orders);
// Returns whether all cells go forward in that order.
bool HasOneForwardOrder(const StageGraph& cells, const RankOrders& orders);
// Returns whether the last cell goes back through each microbatch before its
// next forward.
bool HasOneLoss(const StageGraph& cells, const RankOrders& orders);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_CELL_GRAPH_H_
