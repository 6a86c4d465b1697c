// The schedules of other strategies as starts of a search that chooses memory:
// the classic orders on the given partition, orders of segments and of similar
// steps (planner/strategies/starts), and, if none of them fits, a list schedule
// for the least memory or microbatches one after another. Starts from similar
// steps keep the memory choices of those steps; every other start gets the best
// choices for its order (planner/memory/choose_memory.h). A search that begins
// with the best start ends no slower than any of them, and finds that nothing
// fits only if no start fits.
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
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

// Returns whether the second of two segments goes back from the last rank to
// the first.
bool IsVee(const Partition& partition);

// Returns the classic strategies' orders of a graph, as far as they are defined
// on the partition; first those that do not depend on task times. Orders may
// need more memory than there is.
std::vector<RankOrders> KnownOrders(const StageGraph& graph,
                                    const Partition& partition);

// Returns those of them that are tried before all else where memory is short:
// GPipe's, if it fits with everything kept, which takes little time and may be
// the best, and the first.
std::vector<RankOrders> EarlyOrders(const StageGraph& graph,
                                    const Partition& partition);

// A strategy whose schedule is the best of the starts. For one step: under
// lower limits than those of its first call, it only tries the starts that were
// best then. An order of segments that no longer fits is scheduled again for
// the lower limits; the best one is kept for the case that classic orders,
// which cannot be made again, no longer fit.
class KnownStarts : public Strategy {
 public:
  // Makes the strategy. `name` is that of the strategy that its plans are for.
  // `segments` is the budget of the search for orders of segments, which is
  // left out with less than one evaluation. `lent`: see StartsFromOthers.
  KnownStarts(absl::string_view name, SearchBudget segments,
              std::vector<LentStep> lent = {});
  ~KnownStarts() override;

  absl::string_view name() const override { return name_; }
  bool split_backward() const override { return true; }
  bool chooses_memory() const override { return true; }
  // Returns Unimplemented: the partition is that of the strategy it is for.
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override;
  // Returns Unimplemented: it chooses memory too.
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override;
  // Returns ResourceExhausted if none of the starts fits with any choices
  // tried. The budget only counts once something fits.
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
