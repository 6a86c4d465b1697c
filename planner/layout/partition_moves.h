// The partitions that the search for a job's partition tries
// (planner/layout/partition_search.h): where it starts, and what one change
// makes of a partition. Orders are fixed. Threads: const methods from any
// number.
#ifndef PIPELOOM_PLANNER_LAYOUT_PARTITION_MOVES_H_
#define PIPELOOM_PLANNER_LAYOUT_PARTITION_MOVES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "ir/plan/partition.h"
#include "partition/placement/recipe.h"

namespace pipeloom::planner {

struct PartitionCandidate {
  Partition partition{};
  // None: layers were moved.
  std::optional<partition::PartitionRecipe> recipe{};
  std::string name{};
  std::optional<Duration> time{};  // Of the steps that fit; none: none does.
  int32_t misfits = 0;             // Sample steps that do not fit.
  Duration first_step{};           // Of the first sample step alone.
  // Of each step it was judged by last; 0: does not fit, or the first before.
  std::vector<Duration> times{};
};

class PartitionMoves {
 public:
  // nullopt: it cannot be built.
  using Candidates = std::vector<std::optional<PartitionCandidate>>;

  // Keeps a reference.
  explicit PartitionMoves(const partition::PartitionBuilder& builder)
      : builder_(builder) {}

  std::optional<PartitionCandidate> Make(
      const partition::PartitionRecipe& recipe) const;
  // DIP's rule with other sizes and segments, independent models in opposite
  // directions, all modules in one chain, the largest on ranks of its own.
  Candidates Starts(const partition::PartitionRecipe& rule) const;
  // The recipe with one choice changed.
  Candidates Neighbours(const partition::PartitionRecipe& from) const;
  // The partition with one unit of layers on the other side of a border.
  Candidates Moved(const PartitionCandidate& from) const;

 private:
  // Modules that are worth choosing for, the largest first.
  std::vector<ModuleId> Heavy() const;
  void OwnRanks(const partition::PartitionRecipe& rule,
                const std::vector<ModuleId>& heavy, Candidates* starts) const;
  // Several models that do not feed each other.
  bool Independent() const;
  int32_t MostSegments(ModuleId m, const partition::ModuleRecipe& recipe) const;
  std::vector<int64_t> NearbySizes(ModuleId m, int64_t now) const;

  const partition::PartitionBuilder& builder_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_PARTITION_MOVES_H_
