#include "emulator/cluster/meeting_replicas.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/numeric.h"
#include "base/status_macros.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"

namespace pipeloom::emulator {
namespace {

bool GathersInPasses(const JobSpec& job) {
  return job.training.optimizer_sharding == OptimizerSharding::kZero3 &&
         job.parallel.dp > 1 &&
         !(job.setup.gathered_in_pipeline && job.parallel.pp > 1);
}

// With ZeRO-2, gradients are reduced as soon as a pass has them.
bool ReducesInPasses(const JobSpec& job) {
  return job.training.optimizer_sharding == OptimizerSharding::kZero2 &&
         job.parallel.dp > 1;
}

// Returns over how many replicas the experts of a layer are spread.
int32_t ReplicasOfExperts(const JobSpec& job) {
  if (!HasExperts(job.model)) return 1;
  const ParallelLayout& parallel = job.parallel;
  const int64_t spread =
      CeilDiv(parallel.expert_gpus(), int64_t{parallel.gpus_per_rank()});
  return static_cast<int32_t>(std::clamp<int64_t>(spread, 1, parallel.dp));
}

bool MeetsIn(const JobSpec& job, ModuleId module, Pass pass) {
  if (GathersInPasses(job)) return true;
  if (ReducesInPasses(job) && pass != Pass::kForward && !job.IsFrozen(module)) {
    return true;
  }
  // Weight gradients of experts send no tokens.
  return pass != Pass::kWeightGrad && HasExperts(job.model.modules[module]) &&
         ReplicasOfExperts(job) > 1;
}

// A replica that is emulated.
struct Replica {
  StepProgram program{};
  StepTimes times{};
  // Slots of the passes in which it meets others, in program order. Indexed by
  // rank.
  std::vector<std::vector<size_t>> passes{};
};

absl::StatusOr<Replica> Compile(const JobSpec& job, const ExecutionPlan& plan) {
  Replica replica;
  PIPELOOM_ASSIGN_OR_RETURN(replica.program, CompileStep(plan, {}));
  replica.times = TimesOf(replica.program, plan, {});
  replica.passes.resize(static_cast<size_t>(replica.program.num_ranks));
  for (size_t slot = 0; slot < replica.program.task_of_slot.size(); ++slot) {
    const Task& task = plan.graph.task(replica.program.task_of_slot[slot]);
    if (MeetsIn(job, task.module, task.pass)) {
      replica.passes[static_cast<size_t>(task.rank.value())].push_back(slot);
    }
  }
  return replica;
}

}  // namespace

int32_t ReplicasThatMeet(const JobSpec& job) {
  return GathersInPasses(job) || ReducesInPasses(job) ? job.parallel.dp
                                                      : ReplicasOfExperts(job);
}

bool MeetsInPasses(const JobSpec& job, ModuleId module) {
  return MeetsIn(job, module, Pass::kForward) ||
         MeetsIn(job, module, Pass::kBackward);
}

std::optional<UnlikeWork> FindUnlikeWork(
    const JobSpec& job, absl::Span<const Microbatches> replicas) {
  using Place = std::pair<MicrobatchId, ModuleId>;
  std::map<Place, int32_t> first;
  for (size_t d = 0; d < replicas.size(); ++d) {
    std::map<Place, int32_t> own;
    for (const SubMicrobatch& sub : replicas[d].sub_microbatches) {
      if (MeetsInPasses(job, sub.module)) ++own[{sub.microbatch, sub.module}];
    }
    if (d == 0) {
      first = std::move(own);
      continue;
    }
    const auto parts_in = [](const std::map<Place, int32_t>& all, Place place) {
      const auto found = all.find(place);
      return found == all.end() ? 0 : found->second;
    };
    for (const auto* all : {&first, &own}) {
      for (const auto& [place, parts] : *all) {
        const int32_t mine = parts_in(own, place);
        const int32_t theirs = parts_in(first, place);
        if (mine == theirs) continue;
        return UnlikeWork{.replica = static_cast<int32_t>(d),
                          .microbatch = place.first,
                          .module = place.second,
                          .parts = mine,
                          .first_parts = theirs};
      }
    }
  }
  return std::nullopt;
}

absl::StatusOr<MeetingStep> EmulateMeeting(
    const JobSpec& job, absl::Span<const ExecutionPlan* const> replicas) {
  std::vector<Replica> all;
  for (const ExecutionPlan* plan : replicas) {
    PIPELOOM_ASSIGN_OR_RETURN(Replica replica, Compile(job, *plan));
    all.push_back(std::move(replica));
  }
  const auto task = [&](size_t d, size_t slot) -> const Task& {
    return replicas[d]->graph.task(all[d].program.task_of_slot[slot]);
  };
  const auto group = static_cast<size_t>(ReplicasThatMeet(job));
  MeetingStep step;
  for (size_t first = 0; first < all.size(); first += group) {
    const size_t end = std::min(first + group, all.size());
    for (size_t rank = 0; rank < all[first].passes.size(); ++rank) {
      const std::vector<size_t>& slots = all[first].passes[rank];
      for (size_t d = first + 1; d < end; ++d) {
        const std::vector<size_t>& others = all[d].passes[rank];
        const bool same = std::equal(slots.begin(), slots.end(), others.begin(),
                                     others.end(), [&](size_t a, size_t b) {
                                       const Task& mine = task(first, a);
                                       const Task& other = task(d, b);
                                       return mine.stage == other.stage &&
                                              mine.pass == other.pass;
                                     });
        if (!same) {
          step.different = RankId(static_cast<int32_t>(rank));
          return step;
        }
      }
      for (size_t k = 0; k < slots.size(); ++k) {
        int64_t longest = 0;
        for (size_t d = first; d < end; ++d) {
          longest =
              std::max(longest, all[d].times.durations[all[d].passes[rank][k]]);
        }
        for (size_t d = first; d < end; ++d) {
          all[d].times.durations[all[d].passes[rank][k]] = longest;
        }
      }
    }
  }
  for (const Replica& replica : all) {
    StepEngine engine(replica.program, replica.times);
    PIPELOOM_RETURN_IF_ERROR(engine.Run());
    step.step_time = std::max(step.step_time, Nanoseconds(engine.finish()));
  }
  return step;
}

}  // namespace pipeloom::emulator
