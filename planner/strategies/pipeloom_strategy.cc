#include "planner/strategies/pipeloom_strategy.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/placement/placement.h"
#include "partition/placement/recipe.h"
#include "planner/search/search_graph.h"
#include "planner/step/partition_choice.h"
#include "planner/strategies/classic.h"
#include "planner/strategies/dip/dip_strategy.h"
#include "planner/strategies/disttrain.h"
#include "planner/strategies/known_starts.h"
#include "planner/strategies/megatron_tuned.h"
#include "planner/strategies/memory_search.h"
#include "planner/strategies/nnscaler.h"
#include "planner/strategies/optimus.h"
#include "planner/strategies/representative_step.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// Returns the partitions of the other strategies, those whose own plans of the
// sample's median step are the fastest first.
absl::StatusOr<std::vector<Partition>> BestOfOthers(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    const std::stop_token& stop) {
  PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep median,
                            RepresentativeStep::Create(costs, sample, stop));
  std::vector<std::pair<Duration, Partition>> offers;
  for (const auto make :
       {MakeMegatronTuned, MakeOptimus, MakeMegatron, MakeInterleaved,
        MakeDistTrain, MakeNnScaler, MakeZeroBubbleV, MakeDualPipeV}) {
    const std::unique_ptr<Strategy> other = make();
    absl::StatusOr<Partition> partition =
        other->MakePartition(costs, sample, stop);
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    // A strategy may have none for the job.
    if (!partition.ok() ||
        !partition::CheckPartitionRules(costs.job(), *partition).ok()) {
      continue;
    }
    const absl::StatusOr<std::optional<Duration>> time =
        median.PlannedTime(*other, *partition);
    if (!time.ok() || !time->has_value()) continue;
    offers.emplace_back(**time, *std::move(partition));
  }
  std::stable_sort(
      offers.begin(), offers.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Partition> best;
  for (auto& [time, partition] : offers) {
    if (std::find(best.begin(), best.end(), partition) != best.end()) continue;
    best.push_back(std::move(partition));
  }
  return best;
}

// The first of `partitions` is the rule's, then come those of other strategies,
// the fastest first, which take whole microbatches. Inserts after the fastest
// two their copies with the rule's sub-microbatches. Only two, as each copy is
// planned on sample steps, which takes time.
void InsertCutCopies(std::vector<Partition>* partitions) {
  constexpr size_t kCopied = 2;
  const size_t end = std::min(partitions->size(), 1 + kCopied);
  std::vector<Partition> copies;
  for (size_t i = 1; i < end; ++i) {
    Partition copy = (*partitions)[i];
    copy.sub_microbatch_instances =
        partitions->front().sub_microbatch_instances;
    if (std::find(partitions->begin(), partitions->end(), copy) ==
        partitions->end()) {
      copies.push_back(std::move(copy));
    }
  }
  partitions->insert(partitions->begin() + static_cast<std::ptrdiff_t>(end),
                     std::make_move_iterator(copies.begin()),
                     std::make_move_iterator(copies.end()));
}

bool CutsMicrobatches(const Partition& partition) {
  const auto& instances = partition.sub_microbatch_instances;
  return std::any_of(instances.begin(), instances.end(),
                     [](int64_t count) { return count > 0; });
}

class PipeloomStrategy : public Strategy,
                         public StartsFromOthers,
                         public SearchesBySeed {
 public:
  absl::string_view name() const override { return "pipeloom"; }
  bool split_backward() const override { return true; }
  bool searches() const override { return true; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override {
    PIPELOOM_ASSIGN_OR_RETURN(Partition rule, partition::SeparatedPartition(
                                                  costs.job(), costs, sample));
    const absl::StatusOr<std::vector<Partition>> others =
        BestOfOthers(costs, sample, stop);
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    std::vector<Partition> partitions = {std::move(rule)};
    if (others.ok()) {
      std::copy_if(others->begin(), others->end(),
                   std::back_inserter(partitions),
                   [&](const Partition& p) { return p != partitions[0]; });
    }
    InsertCutCopies(&partitions);
    PIPELOOM_ASSIGN_OR_RETURN(
        const size_t chosen,
        ChoosePartition(
            *this, costs, sample, partitions,
            {.threads = std::clamp(
                 static_cast<int32_t>(std::thread::hardware_concurrency()), 1,
                 8),
             .stop = stop}));
    return std::move(partitions[chosen]);
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
  std::unique_ptr<Strategy> Starts(SearchBudget segments,
                                   std::vector<LentStep> lent) const override {
    return std::make_unique<KnownStarts>(name(), std::move(segments),
                                         std::move(lent));
  }
  std::vector<std::unique_ptr<Strategy>> QuickRivals(
      const Partition& partition) const override {
    std::vector<std::unique_ptr<Strategy>> rivals;
    if (CutsMicrobatches(partition)) {
      rivals.push_back(MakeDipInterleave());
    } else if (IsVee(partition)) {
      // Either may be a tenth faster: dualpipe-v (llama3-70b, 25 microbatches)
      // or zb-v (internvl3-38b, 13 microbatches), both on 16 ranks.
      rivals.push_back(MakeDualPipeV());
      rivals.push_back(MakeZeroBubbleV());
    } else {
      rivals.push_back(MakeInterleaved());
    }
    return rivals;
  }
  std::vector<std::unique_ptr<Strategy>> TightRivals(
      const Partition& partition) const override {
    std::vector<std::unique_ptr<Strategy>> rivals;
    if (!CutsMicrobatches(partition)) rivals.push_back(MakeDipInterleave());
    return rivals;
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
