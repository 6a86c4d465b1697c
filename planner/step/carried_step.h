// The lessons of one step for the search of another: when each module ran
// in each microbatch, and how much room boundary tensors took.
//
// Batches of a job differ in their samples, but the heaviest microbatch of one
// step resembles the heaviest of another, the second the second, and so on. So
// each microbatch takes over the times of the one with the same place in this
// order, as one of the orders that the search begins with, and limits are
// lowered at once by what tensors took.
#ifndef PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_
#define PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_

#include <memory>
#include <vector>

#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/step/plan_choice.h"

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
  // Segments of each microbatch, sorted by start. Microbatches are sorted by
  // the work of their forwards, the most first.
  std::vector<std::vector<Segment>> microbatches{};
  // Indexed as `microbatches`: the time of their forwards.
  std::vector<Duration> work{};
  // Indexed by rank: what the limit was lowered by for boundary tensors.
  IdVector<RankId, Bytes> room{};
};

// Returns roughly how many bytes it takes in memory.
Bytes SizeOf(const CarriedStep& carried);

// Returns the step whose microbatches differ least from those of `graph` (ties:
// the first); null if there is none, or if they differ too much to learn from.
std::shared_ptr<const CarriedStep> MostSimilar(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph);

// Returns what the plan of a step teaches. O(tasks log tasks).
CarriedStep CarryFrom(const partition::BuiltGraph& built,
                      const Candidate& planned);

// Returns for each task of another step of the same job, as a share of the
// step, when the segment of its kind started; for a module that the other
// microbatch lacked, its first or last start. O(tasks log tasks).
std::vector<double> CarriedStarts(const CarriedStep& carried,
                                  const StageGraph& graph);

// Returns the limits of a step, lowered as the carried step's were.
IdVector<RankId, RankSpec> CarriedLimits(const CarriedStep& carried,
                                         const StageGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_
