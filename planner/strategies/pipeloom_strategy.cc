#include "planner/strategies/pipeloom_strategy.h"

#include <utility>
#include <vector>

#include "partition/placement/placement.h"
#include "planner/search/search_graph.h"
#include "planner/strategies/classic.h"
#include "planner/strategies/dip/dip_strategy.h"
#include "planner/strategies/disttrain.h"
#include "planner/strategies/known_starts.h"
#include "planner/strategies/memory_search.h"
#include "planner/strategies/optimus.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

class PipeloomStrategy : public Strategy, public StartsFromOthers {
 public:
  absl::string_view name() const override { return "pipeloom"; }
  bool split_backward() const override { return true; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs,
      const BatchMetadata& sample) const override {
    return partition::SeparatedPartition(costs.job(), costs, sample);
  }
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition&, uint64_t seed,
      const SearchBudget& budget) const override {
    return SearchGraph(graph, seed, budget);
  }
  bool chooses_memory() const override { return true; }
  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override {
    return SearchWithMemory(graph, memory, partition, seed, budget);
  }
  std::unique_ptr<Strategy> Starts(SearchBudget dip) const override {
    return std::make_unique<KnownStarts>(name(), std::move(dip));
  }
  std::vector<std::unique_ptr<Strategy>> Rivals() const override {
    std::vector<std::unique_ptr<Strategy>> rivals;
    for (const auto make :
         {MakeDipInterleave, MakeInterleaved, MakeOptimus, MakeZeroBubbleH1,
          MakeOneFOneB, MakeZeroBubbleV, MakeDualPipeV, MakeDistTrain,
          MakeGPipe, MakeVHalf, MakeVMin, MakeDip, MakeDipOrder}) {
      rivals.push_back(make());
    }
    return rivals;
  }
  absl::StatusOr<MemorySchedule> MakeMemoryScheduleFrom(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& known, uint64_t seed,
      const SearchBudget& budget) const override {
    return SearchWithMemory(graph, memory, partition, seed, budget, nullptr,
                            &known);
  }
  absl::StatusOr<MemorySchedule> ImproveMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& start, uint64_t seed,
      const SearchBudget& budget) const override {
    return SearchWithMemory(graph, memory, partition, seed, budget, &start);
  }
};

}  // namespace

std::unique_ptr<Strategy> MakePipeloom() {
  return std::make_unique<PipeloomStrategy>();
}

}  // namespace pipeloom::planner
