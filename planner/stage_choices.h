// Which memory choices are worth offering for a stage.
//
// Each layer is kept, recomputed or offloaded, as the job allows. An exact
// multiple-choice knapsack over the layers gives the best compromises of time
// and held bytes; of these go on the leanest and the fastest of each of equal
// ranges of memory (DIP, arXiv 2504.14145, section 5.3, where each stage pair
// has 10 candidates). Settled here, as the paper does not say: recomputed
// layers are checkpointed one by one, and besides, the whole stage or half of
// it may be one group, which holds less and needs more in the backward;
// offloading takes as many layers as can be copied during the forward and
// during the backward, or half as many, and the knapsack decides on the others.
#ifndef PIPELOOM_PLANNER_STAGE_CHOICES_H_
#define PIPELOOM_PLANNER_STAGE_CHOICES_H_

#include <cstdint>
#include <vector>

#include "emulator/stage_cost.h"
#include "ir/memory_policy.h"
#include "partition/memory_candidates.h"

namespace pipeloom::planner {

// The paper's example.
inline constexpr int32_t kStageCandidates = 10;

// At most `max_candidates` with keeping everything, which comes first; then by
// falling held bytes. None is slower than another that holds no more and needs
// no more in the backward. Deterministic; about 10 us.
std::vector<MemoryChoice> ChoicesFor(const partition::LayerCosts& layers,
                                     const JobSpec& job,
                                     int32_t max_candidates = kStageCandidates);

// By stage, for the largest sub-microbatch that its module has in the step.
IdVector<StageId, std::vector<MemoryChoice>> StageChoices(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    int32_t max_candidates = kStageCandidates);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STAGE_CHOICES_H_
