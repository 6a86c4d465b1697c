// What other strategies would run, as starts of a search that chooses memory:
// the classic orders on the partition at hand, DIP's first constructions, and,
// where none of them fits, microbatches one after another. Each gets the best
// memory choices for its order (planner/memory/choose_memory.h). So a search
// that keeps the best of these is never worse than they are, and says that
// nothing fits only where none of them does.
#ifndef PIPELOOM_PLANNER_STRATEGIES_KNOWN_STARTS_H_
#define PIPELOOM_PLANNER_STRATEGIES_KNOWN_STARTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/plan/partition.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// The classic strategies' orders of any graph, as far as they are defined on
// the partition; those that make orders without looking at times first. Orders
// may need more memory than there is.
std::vector<RankOrders> KnownOrders(const StageGraph& graph,
                                    const Partition& partition);

// A strategy whose schedule is the best of the starts. Under lower limits than
// those of its first call it tries only what was good then. For one step.
class KnownStarts : public Strategy {
 public:
  // `name`: of the strategy that its plans are for. `dip`: the budget of DIP's
  // part; nothing of it with less than one evaluation.
  KnownStarts(absl::string_view name, SearchBudget dip);
  ~KnownStarts() override;

  absl::string_view name() const override { return name_; }
  bool split_backward() const override { return true; }
  bool chooses_memory() const override { return true; }
  // Unimplemented: it takes the partition of the strategy it is for.
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs,
      const BatchMetadata& sample) const override;
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override;
  // ResourceExhausted: none of the starts fits with any choices tried. Until
  // something fits the budget does not count.
  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override;

 private:
  class Tried;
  std::string name_;
  std::unique_ptr<Tried> tried_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_KNOWN_STARTS_H_
