#include "planner/job/common_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "emulator/cluster/meeting_replicas.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/strategies/static_order.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// Returns the time of all passes of each microbatch of the replica.
absl::StatusOr<std::vector<Duration>> TimeByMicrobatch(
    const PreparedJob& job, const partition::PackedStep& packed,
    int32_t replica) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const Microbatches microbatches,
      partition::SplitMicrobatches(job.costs->job(), packed, replica,
                                   job.partition));
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(
          job.costs->ForReplica(replica), job.partition, microbatches,
          {.split_backward = job.strategy->split_backward()}));
  std::vector<Duration> times(
      static_cast<size_t>(microbatches.num_microbatches));
  for (const Task& task : built.graph.tasks()) {
    times[static_cast<size_t>(task.microbatch.value())] += task.duration;
  }
  return times;
}

// Returns whether replicas wait for each other in weight gradients too, so that
// these run apart from backwards in all replicas or in none.
bool MeetsInWeightGrads(const PreparedJob& job) {
  return job.costs->job().training.optimizer_sharding >=
         OptimizerSharding::kZero2;
}

// Returns whether at least half of the backwards have their weight gradient
// apart.
bool MostAreApart(const StageGraph& graph) {
  int64_t apart = 0;
  int64_t backwards = 0;
  for (const Task& task : graph.tasks()) {
    apart += task.pass == Pass::kWeightGrad ? 1 : 0;
    backwards += task.pass == Pass::kBackward ? 1 : 0;
  }
  return 2 * apart >= backwards;
}

}  // namespace

bool NeedsCommonOrder(const PreparedJob& job) {
  return dynamic_cast<const PlansWholeSteps*>(job.strategy) == nullptr &&
         emulator::ReplicasThatMeet(job.costs->job()) > 1;
}

absl::StatusOr<CommonOrder> CommonOrder::Search(const PreparedJob& job,
                                                const PlanInput& input) {
  const partition::PackedStep& packed = *input.packed;
  const int32_t meet = emulator::ReplicasThatMeet(job.costs->job());
  const int32_t first = input.replica / meet * meet;
  const int32_t end =
      std::min(first + meet, static_cast<int32_t>(packed.packed.size()));
  partition::PackedStep joint = packed;
  std::vector<Duration> most;
  for (int32_t replica = first; replica < end; ++replica) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<Duration> times,
                              TimeByMicrobatch(job, packed, replica));
    const auto& own = packed.packed[static_cast<size_t>(replica)];
    auto& chosen = joint.packed[static_cast<size_t>(input.replica)];
    if (replica == first) chosen.clear();
    for (size_t k = 0; k < times.size(); ++k) {
      if (k == most.size()) {
        most.push_back(times[k]);
        chosen.push_back(own[k]);
      } else if (times[k] > most[k]) {
        most[k] = times[k];
        chosen[k] = own[k];
      }
    }
  }
  PlanInput typical = input;
  typical.packed = &joint;
  PIPELOOM_ASSIGN_OR_RETURN(PlanResult plan, PlanStep(job, typical));
  return CommonOrder(job, std::make_shared<const PlanResult>(std::move(plan)));
}

CommonOrder::CommonOrder(const PreparedJob& job,
                         std::shared_ptr<const PlanResult> searched)
    : searched_(std::move(searched)),
      replay_(ReplayOf(
          *searched_, job.partition, job.strategy->name(),
          !MeetsInWeightGrads(job) || MostAreApart(searched_->plan.graph))),
      job_(job) {
  job_.strategy = replay_.get();
}

absl::StatusOr<PlanResult> CommonOrder::Plan(const PlanInput& input) const {
  if (!MeetsInWeightGrads(job_)) return PlanStep(job_, input);
  // With one evaluation, all backwards stay whole, or all in two parts.
  PlanInput alike = input;
  alike.budget.max_evaluations = 1;
  return PlanStep(job_, alike);
}

}  // namespace pipeloom::planner
