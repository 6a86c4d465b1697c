// The partitions that the search for a job's partition tries
// (planner/layout/partition_search.h): its starts, and the results of one
// change of a partition. Orders are fixed. Const methods may be called from any
// number of threads.
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

// A partition and its results.
struct PartitionCandidate {
  Partition partition{};
  // Unset if layers were moved.
  std::optional<partition::PartitionRecipe> recipe{};
  std::string name{};
  // The name of the recipe that it was made by, or from whose partition layers
  // were moved.
  std::string origin{};
  // Mean of the steps that fit; unset if none does.
  std::optional<Duration> time{};
  int32_t misfits = 0;  // Weight of the sample steps that do not fit.
  // Times of the steps that it was last judged by, the first ones of all; 0 for
  // a step that does not fit.
  std::vector<Duration> times{};
};

// Makes partitions for a job.
class PartitionMoves {
 public:
  // nullopt for partitions that cannot be built.
  using Candidates = std::vector<std::optional<PartitionCandidate>>;

  // Keeps a reference to `builder`.
  explicit PartitionMoves(const partition::PartitionBuilder& builder)
      : builder_(builder) {}

  // Builds a recipe's partition.
  std::optional<PartitionCandidate> Make(
      const partition::PartitionRecipe& recipe) const;
  // Returns the starts: DIP's rule with other sizes and segments, independent
  // models in opposite directions, all modules in one chain, and the largest
  // module on ranks of its own.
  Candidates Starts(const partition::PartitionRecipe& rule) const;
  // Returns the recipe with each single choice changed.
  Candidates Neighbours(const partition::PartitionRecipe& from) const;
  // Returns the partition with each single unit of layers moved across a
  // border.
  Candidates Moved(const PartitionCandidate& from) const;

 private:
  // Returns the modules that are worth choosing for, the largest first.
  std::vector<ModuleId> Heavy() const;
  void OwnRanks(const partition::PartitionRecipe& rule,
                const std::vector<ModuleId>& heavy, Candidates* starts) const;
  // Returns whether the job has several models that do not feed each other.
  bool Independent() const;
  int32_t MostSegments(ModuleId m, const partition::ModuleRecipe& recipe) const;
  std::vector<int64_t> NearbySizes(ModuleId m, int64_t now) const;

  const partition::PartitionBuilder& builder_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_PARTITION_MOVES_H_
