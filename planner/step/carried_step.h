// The lessons of one step for the search of another: when each module ran
// in each microbatch, and how much room boundary tensors took.
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
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/step/plan_choice.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

// A planned step, as far as it can be carried over. Immutable.
struct CarriedStep {
  // The forwards, or the other passes, of one module in one microbatch.
  struct Segment {
    ModuleId module{};
    bool backward = false;
    double start = 0;  // Mean start of its tasks as a share of the step.
    bool operator==(const Segment&) const = default;
  };
  // One pass of one stage on one sub-microbatch.
  struct Place {
    StageId stage{};
    Pass pass = Pass::kForward;
    int32_t sub_microbatch = 0;
    float start = 0;  // As a share of the step.
    // For a forward: the bytes that stay until its backward, divided by those
    // that would stay with everything kept.
    float held = 1;
    bool operator==(const Place&) const = default;
  };
  // Segments of each microbatch, sorted by start. Microbatches are sorted by
  // the work of their forwards, the most first.
  std::vector<std::vector<Segment>> microbatches{};
  // Indexed as `microbatches`; places are sorted by stage, pass and
  // sub-microbatch.
  std::vector<std::vector<Place>> places{};
  // Indexed as `microbatches`: the time of their forwards.
  std::vector<Duration> work{};
  // Indexed by rank: what the limit was lowered by for boundary tensors.
  IdVector<RankId, Bytes> room{};
  // The time of the step's quick plan (rival_plans.h) as a multiple of the
  // step; 0 if none was made.
  double quick_ratio = 0;
};

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
