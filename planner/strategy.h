// The interface of all scheduling strategies. A strategy decides the partition
// (once a job) and the schedule (every step).
#ifndef PIPELOOM_PLANNER_STRATEGY_H_
#define PIPELOOM_PLANNER_STRATEGY_H_

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/passes/pair_passes.h"
#include "planner/search/search_graph.h"

namespace pipeloom::planner {

// Orders of all tasks, with the memory choices they are for.
struct ChosenOrders {
  RankOrders orders{};
  partition::MemorySelection selection{};
};

// A schedule, with the memory choices and forms of passes it was made for.
struct MemorySchedule {
  partition::MemorySelection selection{};
  // Indexed by pair; if empty, the forms are those of the StepMemory.
  partition::FormSelection forms{};
  std::vector<PairedPass> pairs{};
  std::vector<ForwardPair> forward_pairs{};
  SearchResult found{};  // For the graph with all of these.
  // A search to go on with, if any; it found the schedule or an earlier one.
  std::shared_ptr<GraphSearch> search{};
  // Whether a search goes on from it even without `search`, instead of trying
  // levels of memory first.
  bool go_on = false;
  // Other answers, the best first, for the case that this one leaves no room
  // for the tensors that ranks send and receive.
  std::vector<ChosenOrders> instead{};
};

// A way to cut the model and to order tasks.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual absl::string_view name() const = 0;
  // Cuts the model into stages. `sample` gives typical sample sizes. Cancelled:
  // a stop was requested; it takes at most a second to be noticed.
  virtual absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const = 0;
  // Returns whether its graphs have weight gradients apart from backwards.
  virtual bool split_backward() const = 0;
  // Orders the tasks of a graph made from that partition.
  virtual absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const = 0;

  // Returns whether the strategy decides itself what is kept, recomputed and
  // offloaded; then MakeMemorySchedule is called instead of MakeSchedule.
  virtual bool chooses_memory() const { return false; }
  // Makes a schedule and its memory choices. `graph` has everything kept, and
  // limits that the answer must keep.
  virtual absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const;
  // Goes on from an earlier answer for the same graph under the same limits or
  // higher ones. By default starts anew.
  virtual absl::StatusOr<MemorySchedule> ImproveMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& start, uint64_t seed,
      const SearchBudget& budget) const;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGY_H_
