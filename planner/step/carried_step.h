// The lessons of one step for the search of another (ir/plan/carried_step.h).
//
// Batches of a job differ in their samples, but the heaviest microbatch of one
// step resembles the heaviest of another, the second the second, and so on. So
// each microbatch takes over the times and memory choices of the one with the
// same place in this order, for orders that the search begins with, and limits
// are lowered at once by what tensors took.
#ifndef PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_
#define PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/units.h"
#include "ir/plan/carried_step.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/step/plan_choice.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

// Returns roughly how many bytes it takes in memory.
Bytes SizeOf(const CarriedStep& carried);

// Returns the step whose microbatches differ least from those of `graph` (ties:
// the first); null if there is none, or if they differ too much to learn from.
std::shared_ptr<const CarriedStep> MostSimilar(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph);

// Returns all that do not differ too much, those that differ least first.
std::vector<std::shared_ptr<const CarriedStep>> SimilarSteps(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph);

// Returns what the plan of a step teaches. `memory` has the choices that the
// plan selects from. O(tasks log tasks).
CarriedStep CarryFrom(const partition::BuiltGraph& built,
                      const partition::StepMemory& memory,
                      const Candidate& planned);

// Returns CarriedStep::refined_ratio of an answer and its refined plan.
double RefinedRatio(const Candidate& refined, const Candidate& searched);

// Replaces `carried`, unless it is null, by a copy with this ratio.
void SetRefinedRatio(double ratio, std::shared_ptr<const CarriedStep>* carried);

// Returns what each of some similar steps says of another step of the same job.
// `memory` has the choices of `graph`. Costs O(tasks + pairs x candidates) for
// each, on up to `threads` threads.
std::vector<LentStep> LentSteps(
    const std::vector<std::shared_ptr<const CarriedStep>>& similar,
    const StageGraph& graph, const partition::StepMemory& memory,
    int32_t threads);

// Returns for each task of another step of the same job, as a share of the
// step, when the task of its kind started, or the nearest of its kind if there
// were fewer sub-microbatches; for a stage that the other microbatch lacked,
// when its module's tasks did on the mean, for a module that it lacked, its
// first or last start. O(tasks).
std::vector<double> CarriedStarts(const CarriedStep& carried,
                                  const StageGraph& graph);

// Returns the limits of a step, lowered as the carried step's were.
IdVector<RankId, RankSpec> CarriedLimits(const CarriedStep& carried,
                                         const StageGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_
