// Levelling of ranks: moves the cuts of several chains of layers so that the
// busiest rank has the least work over all of them. An uneven cut of one chain
// compensates that of another.
#ifndef PIPELOOM_PARTITION_PLACEMENT_LEVEL_RANKS_H_
#define PIPELOOM_PARTITION_PLACEMENT_LEVEL_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pipeloom::partition {

// A chain of units cut into runs. Run i is units [begins[i], begins[i + 1]),
// none of them empty.
struct CutChain {
  std::vector<int64_t> weights{};      // Indexed by unit; >= 0.
  std::vector<int32_t> begins{};       // One more than runs.
  std::vector<int32_t> rank_of_run{};  // In [0, num_ranks).
  // Factor on the weights of the units of each run; empty: all 1.
  std::vector<double> slow_of_run{};
  // Returns whether the unit may be in the run; empty: any may.
  std::function<bool(int32_t unit, int32_t run)> may{};
};

// Returns a unit's weight in a run.
int64_t WeightIn(const CutChain& chain, size_t unit, size_t run);

// Returns the work of each rank.
std::vector<int64_t> LoadsOf(const std::vector<CutChain>& chains,
                             int32_t num_ranks);

// Improves the cuts by local search: neighbouring cuts of a chain are moved
// together by one unit, so that the last run gets what the first one gives; if
// no such move helps, one that eases the busiest rank is tried together with a
// second one. Minimises the largest load, then the sum of squares.
// Deterministic. O(cuts^2) loads per move, O(cuts^3) for pairs, which are not
// tried with more than 64 cuts.
void LevelRanks(int32_t num_ranks, std::vector<CutChain>* chains);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_LEVEL_RANKS_H_
