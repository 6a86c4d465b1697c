// The memory choices that are worth offering for a stage.
//
// Each layer is kept, recomputed fully or in part, or offloaded, as the job
// allows. The partial choices are the sets of operator groups with the best
// compromises of time and bytes. A multiple-choice knapsack over the layers
// gives the best compromises of time and held bytes of the stage. Of these, the
// one that holds least, the one that needs least in the backward and the
// fastest of each of equal ranges of memory are offered (DIP, arXiv 2504.14145,
// section 5.3, where each stage pair has 10 candidates).
//
// Some points that the paper leaves open are settled as follows. Of equal
// layers the recomputed ones come first, as the backward then reaches them when
// the others' activations are gone. Fully recomputed layers are checkpointed
// one by one; choices with a checkpoint every 2 or 4 layers, or one for the
// stage or each half of it, are offered too, as they hold less and need more in
// the backward. Offloading takes as many layers as can be copied during the
// forward and during the backward, or half as many, and the knapsack decides on
// the others.
#ifndef PIPELOOM_PLANNER_MEMORY_STAGE_CHOICES_H_
#define PIPELOOM_PLANNER_MEMORY_STAGE_CHOICES_H_

#include <cstdint>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "ir/plan/memory_policy.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

// Number of candidates in the paper's example.
inline constexpr int32_t kStageCandidates = 10;

// Returns the sets of operator groups with the best compromises for a layer, by
// ascending time and bytes. None takes as long as the whole forward, or frees
// as much as recomputing all of it. Returns at most `most`; those with the
// least effect on the front are left out.
std::vector<OperatorGroups> WorthwhileGroups(const emulator::StageCost& layer,
                                             size_t most);

// Returns at most `max_candidates` choices: keeping everything first, then by
// descending held bytes. None is slower than another that holds no more and
// needs no more in the backward. Deterministic; takes about 100 us.
std::vector<MemoryChoice> ChoicesFor(const partition::LayerCosts& layers,
                                     const JobSpec& job,
                                     int32_t max_candidates = kStageCandidates);

// Returns the choices indexed by stage, for the largest sub-microbatch that its
// module has in the step.
IdVector<StageId, std::vector<MemoryChoice>> StageChoices(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    int32_t max_candidates = kStageCandidates);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_STAGE_CHOICES_H_
