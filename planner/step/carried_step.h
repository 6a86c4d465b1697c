// The plan of one step as the start of another step's search: when each pass
// ran, which form it had, what was kept, and how much room boundary tensors
// took.
//
// Batches of a job differ in their samples, but the heaviest microbatch of one
// step resembles the heaviest of another, the second the second, and so on. So
// each microbatch takes over the start times and the memory choices of the one
// with the same place in this order. A list schedule that follows these times
// is legal, and the search goes on from it instead of from nothing.
#ifndef PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_
#define PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/step/plan_choice.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// A planned step, as far as it can be carried over. Immutable.
struct CarriedStep {
  // One stage on one sub-microbatch. Times are starts as shares of the step.
  struct Pair {
    StageId stage{};
    double forward = 0;
    double backward = 0;
    double weight_grad = 0;
    // Index into CarriedStep::choices; -1: the pair had no backward.
    int32_t choice = -1;
    double held_ratio = 1;  // Held bytes over those with everything kept.
    partition::PassForm form = partition::PassForm::kSplit;
  };
  // Pairs of each microbatch, sorted by stage and then sub-microbatch.
  // Microbatches are sorted by the work of their forwards, the most first.
  std::vector<std::vector<Pair>> microbatches{};
  // Indexed as `microbatches`: the time of their forwards.
  std::vector<Duration> work{};
  std::vector<MemoryChoice> choices{};
  // Indexed by rank: what the limit was lowered by for boundary tensors.
  IdVector<RankId, Bytes> room{};
};

// Returns roughly how many bytes it takes in memory.
Bytes SizeOf(const CarriedStep& carried);

// Returns the step whose microbatches differ least from those of `graph` (ties:
// the first); null if there is none, or if they differ too much to learn from.
std::shared_ptr<const CarriedStep> MostSimilar(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph,
    const IdVector<StagePairId, partition::StagePair>& pairs);

// Returns what the plan of a step teaches. O(tasks log tasks).
CarriedStep CarryFrom(const partition::BuiltGraph& built,
                      const partition::StepMemory& memory,
                      const Candidate& planned);

// Makes an answer for another step of the same job and partition. `graph` has
// everything kept and backwards split, and the limits to keep. The answer's
// bound is 0. ResourceExhausted: what the list scheduler makes does not fit.
// Takes a few list schedules.
absl::StatusOr<MemorySchedule> ApplyCarried(
    const CarriedStep& carried, const StageGraph& graph,
    const partition::StepMemory& memory);

// Returns a strategy for one step whose schedules are ApplyCarried's. Keeps a
// reference to `carried`.
std::unique_ptr<Strategy> MakeCarriedStart(absl::string_view name,
                                           const CarriedStep& carried);

// Returns the limits of a step, lowered as the carried step's were.
IdVector<RankId, RankSpec> CarriedLimits(const CarriedStep& carried,
                                         const StageGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_CARRIED_STEP_H_
