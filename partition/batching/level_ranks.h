// Cuts of several chains of layers moved so that the busiest rank has least to
// do over all of them: an uneven cut here makes up for one there.
#ifndef PIPELOOM_PARTITION_BATCHING_LEVEL_RANKS_H_
#define PIPELOOM_PARTITION_BATCHING_LEVEL_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pipeloom::partition {

// Run i is units [begins[i], begins[i + 1]), none of them empty.
struct CutChain {
  std::vector<int64_t> weights{};      // By unit, >= 0.
  std::vector<int32_t> begins{};       // One more than runs.
  std::vector<int32_t> rank_of_run{};  // In [0, num_ranks).
  // What its units' weights are multiplied by there; empty: all 1.
  std::vector<double> slow_of_run{};
  // Whether the unit may be in the run; empty: any may.
  std::function<bool(int32_t unit, int32_t run)> may{};
};

// A unit's weight in a run.
int64_t WeightIn(const CutChain& chain, size_t unit, size_t run);

// The work of each rank.
std::vector<int64_t> LoadsOf(const std::vector<CutChain>& chains,
                             int32_t num_ranks);

// Local search: neighbouring cuts of a chain are moved together by one unit, so
// that what the first run gives the last one gets; where no such move helps,
// one that eases the busiest rank is tried with a second one. Least is first
// the largest load, then the sum of squares. Deterministic. O(cuts^2) loads a
// move, O(cuts^3) for pairs, which are left out where there are over 64 cuts.
void LevelRanks(int32_t num_ranks, std::vector<CutChain>* chains);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_LEVEL_RANKS_H_
