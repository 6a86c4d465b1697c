// Memory choices by one rule for whole modules, as starts of searches.
#ifndef PIPELOOM_PLANNER_MEMORY_MEMORY_LEVELS_H_
#define PIPELOOM_PLANNER_MEMORY_MEMORY_LEVELS_H_

#include <vector>

#include "absl/types/span.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Returns levels without copies to the host: those at `shares` of the way from
// keeping everything (0) to holding least (1), in this order; then those that
// peak lowest; then each module alone at the least. They differ; some may not
// fit.
std::vector<partition::MemorySelection> MemoryLevels(
    const partition::StepMemory& memory, const Partition& partition,
    absl::Span<const double> shares);

// Returns how many microbatches fit on the rank that has room for the fewest,
// if all pairs have these choices: a pipeline is full when about as many are
// under way as it has ranks. The size of a microbatch is the mean weighted by
// size (the sum of the squares of what each holds over the sum), since large
// ones are in the way most. Infinite without limits. `graph` has everything
// kept. O(pairs).
double MicrobatchesThatFit(const StageGraph& graph,
                           const partition::StepMemory& memory,
                           const partition::MemorySelection& selection);

// Moves levels with room for fewer than half as many microbatches as ranks to
// the end, the roomiest first; the others stay in order. With room for half as
// many, a step takes about twice the work of a rank. The half was chosen on
// dip-vlm-l and internvl3-38b with 16 ranks and 40 GiB, and on dip-vlm-s,
// dip-vlm-l, qwen2.5-vl-72b and step-video-t2v as they are, whose best levels
// have room for 0.8 to 4 times as many microbatches of mean size as ranks.
void PutRoomyLevelsFirst(const StageGraph& graph,
                         const partition::StepMemory& memory,
                         std::vector<partition::MemorySelection>* levels);

// Returns the two of `levels` with the shortest estimated steps. The estimate
// is the work of all passes with what they recompute; if fewer microbatches fit
// than a share of the ranks, it grows in proportion. The share is 0.9 for the
// first level and 2 for the second: where microbatches differ or ranks have
// several segments, more of them have to be in flight. For large steps, which
// have time for two levels only (docs/evaluation/memory_limits.md). The first
// share was chosen on dip-vlm-s, qwen2.5-vl-72b, dip-t2v-s and dip-t2v-xl with
// 16 ranks each and on 76 random jobs near their smallest limits, the second
// on 34 other random jobs, on which 1.4, 2, 3 and 6 were compared
// (docs/evaluation/search_parts.md).
// O(levels x pairs).
std::vector<partition::MemorySelection> ShortestLevels(
    const StageGraph& graph, const partition::StepMemory& memory,
    std::vector<partition::MemorySelection> levels);

// Returns the levels at which the first orders of a step are made, the most
// promising first.
std::vector<partition::MemorySelection> StartLevels(
    const StageGraph& graph, const partition::StepMemory& memory,
    const Partition& partition);

// Returns whether some rank has no room for two of its largest microbatches
// even if they hold least: then it depends much on their order how long a step
// takes. `graph` has everything kept. O(tasks log tasks).
bool MemoryIsTight(const StageGraph& graph,
                   const partition::StepMemory& memory);

// Returns the graph with each pair's fastest backward, whatever it holds. No
// choices make the step of an order shorter. `graph` has everything kept.
// O(pairs x candidates + edges).
FlatGraph WithFastestChoices(const StageGraph& graph,
                             const partition::StepMemory& memory);

// Returns the choices as if weight gradients always filled gaps of later
// backwards (pair_passes.h). Usually a pair is fused, and its backward takes
// the time of its faster form. But if the gap is shorter than half of the
// weight gradient, and the time that gaps do not hide is a notable part of the
// step, the pair is split, and its weight gradient takes the time that the gap
// does not hide. A step with these choices is about as long as it will be once
// its passes are refined (refine_passes.h). `memory` has the split forms.
// O(candidates).
partition::StepMemory AsIfPaired(const partition::StepMemory& memory);

// Returns the same with every pair fused. Where AsIfPaired splits a pair, its
// backward holds as much as split: an order that fits fits there too with each
// weight gradient right after its backward.
partition::StepMemory AsIfPairedAndFused(const partition::StepMemory& memory);

// Returns whether communication gaps of backwards can hide at least a tenth of
// the time of weight gradients, so that a search should count on that
// (AsIfPaired). Where gaps hide nothing (tp 1), weight gradients should fill
// idle time as separate passes. The tenth was chosen on PipeMorph's job, where
// gaps hide nothing and counting on them made the step 5.6 % longer (14 % with
// a slow link), and on 13 shipped jobs, where they hide a fifth or more.
// `memory` has the split forms. O(pairs).
bool GapsHideWeightGrads(const partition::StepMemory& memory);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_MEMORY_LEVELS_H_
