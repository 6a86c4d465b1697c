// A StageGraph as plain columns of integers for the inner loops of searches,
// without ids and units; adjacency is in compressed rows. Times are in ns,
// memory in bytes. Immutable once made; may be read from any number of threads.
#ifndef PIPELOOM_PLANNER_CORE_FLAT_GRAPH_H_
#define PIPELOOM_PLANNER_CORE_FLAT_GRAPH_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// A time or size that stands for none or no limit.
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

// The columns. `num_tasks` or `num_ranks` values each, except for edges.
struct FlatGraph {
  FlatGraph() = default;
  explicit FlatGraph(const StageGraph& graph);

  int32_t num_ranks = 0;
  int32_t num_tasks = 0;
  // Indexed by task.
  std::vector<int64_t> duration{};
  std::vector<int64_t> alloc{};
  std::vector<int64_t> free{};
  std::vector<int32_t> rank{};
  std::vector<Pass> pass{};
  // The producers of t are pred[pred_offset[t] .. pred_offset[t + 1]).
  std::vector<int32_t> pred_offset{};
  std::vector<int32_t> pred{};
  std::vector<int64_t> pred_delay{};
  std::vector<int32_t> succ_offset{};
  std::vector<int32_t> succ{};
  std::vector<int64_t> succ_delay{};
  // Indexed by rank. `capacity` is the limit less static memory (negative if
  // that alone is over the limit), or kNoLimit; `epilogue` the time after the
  // rank's last task.
  std::vector<int64_t> capacity{};
  std::vector<int64_t> epilogue{};
};

// Returns the graph without transfer times and, if backwards are split, with
// the mean duration of forward, backward and weight gradient for each of these
// passes of a stage on a microbatch. Its schedules are regular where small
// differences upset those of the true costs; an order that is legal in one is
// legal in the other.
FlatGraph Idealised(const StageGraph& graph);

// Returns a topological sequence of all tasks in which each rank's tasks appear
// in the order of `orders`; empty if the orders contradict the dependencies or
// do not list every task once. O(tasks + edges).
std::vector<int32_t> Linearize(const FlatGraph& graph,
                               const RankOrders& orders);

// Returns the rank orders that a sequence of all tasks implies.
RankOrders OrdersOf(const FlatGraph& graph, absl::Span<const int32_t> sequence);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_FLAT_GRAPH_H_
