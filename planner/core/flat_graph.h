// A StageGraph as plain columns of integers for the inner loops of searches:
// no ids, no units, adjacency as compressed rows. Times in ns, memory in bytes.
// Immutable once made; read from any number of threads.
#ifndef PIPELOOM_PLANNER_CORE_FLAT_GRAPH_H_
#define PIPELOOM_PLANNER_CORE_FLAT_GRAPH_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

struct FlatGraph {
  FlatGraph() = default;
  explicit FlatGraph(const StageGraph& graph);

  int32_t num_ranks = 0;
  int32_t num_tasks = 0;
  // By task.
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
  // By rank: limit less static memory (negative when that alone is over), or
  // kNoLimit; time after the rank's last task.
  std::vector<int64_t> capacity{};
  std::vector<int64_t> epilogue{};
};

// The graph without transfer times and with the mean duration of forward,
// backward and weight gradient for each of a rank's three passes on a
// microbatch's chunk. Its schedules are regular where those of the true costs
// are upset by small differences; an order legal in one is legal in the other.
FlatGraph Idealised(const StageGraph& graph);

// A topological sequence of all tasks in which each rank's tasks appear in
// `orders`; empty when the orders contradict the dependencies or do not list
// every task once. O(tasks + edges).
std::vector<int32_t> Linearize(const FlatGraph& graph,
                               const RankOrders& orders);

// The rank orders that a sequence of all tasks implies.
RankOrders OrdersOf(const FlatGraph& graph, absl::Span<const int32_t> sequence);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_FLAT_GRAPH_H_
