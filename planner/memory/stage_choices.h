// Which memory choices are worth offering for a stage.
//
// Each layer is kept, recomputed fully or in part, or offloaded, as the job
// allows. In part: the sets of operator groups with the best compromises of
// time and bytes. A multiple-choice knapsack over the layers gives the best
// compromises of time and held bytes of the stage; of these go on what holds
// least, what needs least in the backward and the fastest of each of equal
// ranges of memory (DIP, arXiv 2504.14145, section 5.3, where each stage pair
// has 10 candidates). Settled here, as the paper does not say: of equal layers
// those recomputed come first, as the backward then reaches them when the
// others' activations are gone; fully recomputed layers are checkpointed one by
// one, and besides, a checkpoint may stand every 2 or 4 layers, or one for the
// stage or each half of it, which holds less and needs more in the backward;
// offloading takes as many layers as can be copied during the forward and
// during the backward, or half as many, and the knapsack decides on the others.
#ifndef PIPELOOM_PLANNER_MEMORY_STAGE_CHOICES_H_
#define PIPELOOM_PLANNER_MEMORY_STAGE_CHOICES_H_

#include <cstdint>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "ir/plan/memory_policy.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

// The paper's example.
inline constexpr int32_t kStageCandidates = 10;

// The best compromises of a layer's sets of groups, by rising time and bytes:
// none takes as long as the whole forward, or gives as much as its whole
// recomputation. At most `most`; the ones with least effect on the front are
// left out.
std::vector<OperatorGroups> WorthwhileGroups(const emulator::StageCost& layer,
                                             size_t most);

// At most `max_candidates` with keeping everything, which comes first; then by
// falling held bytes. None is slower than another that holds no more and needs
// no more in the backward. Deterministic; about 100 us.
std::vector<MemoryChoice> ChoicesFor(const partition::LayerCosts& layers,
                                     const JobSpec& job,
                                     int32_t max_candidates = kStageCandidates);

// By stage, for the largest sub-microbatch that its module has in the step.
IdVector<StageId, std::vector<MemoryChoice>> StageChoices(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    int32_t max_candidates = kStageCandidates);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_STAGE_CHOICES_H_
