#include "planner/bounds/job_bound.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"

namespace pipeloom::planner {
namespace {

using emulator::StageCost;
using emulator::StageCostModel;

// The least times of a module on one microbatch.
struct ModuleTimes {
  bool present = false;
  bool has_backward = false;
  Duration work{};   // The whole microbatch.
  Duration chain{};  // The largest instance, both ways.
};

class JobBound {
 public:
  JobBound(const StageCostModel& costs, const partition::PackedStep& step,
           int32_t replica)
      : costs_(costs), job_(costs.job()), step_(step), replica_(replica) {}

  absl::StatusOr<Duration> Find() const {
    PIPELOOM_ASSIGN_OR_RETURN(const Microbatches whole, Split(0));
    PIPELOOM_ASSIGN_OR_RETURN(const Microbatches single, Split(1));
    const int32_t count = whole.num_microbatches;
    std::vector<IdVector<ModuleId, ModuleTimes>> times(
        static_cast<size_t>(count),
        IdVector<ModuleId, ModuleTimes>(job_.model.modules.size()));
    const auto at = [&](const SubMicrobatch& sub) -> ModuleTimes& {
      return times[static_cast<size_t>(sub.microbatch.value())][sub.module];
    };
    for (const SubMicrobatch& sub : whole.sub_microbatches) {
      at(sub).present = true;
    }
    for (auto& modules : times) MarkBackwards(&modules);
    for (const SubMicrobatch& sub : whole.sub_microbatches) {
      at(sub).work = Least(sub, FedByTrained(times, sub)).work;
    }
    std::vector<IdVector<ModuleId, Duration>> sliced(
        static_cast<size_t>(count),
        IdVector<ModuleId, Duration>(job_.model.modules.size()));
    for (const SubMicrobatch& sub : single.sub_microbatches) {
      const Times least = Least(sub, FedByTrained(times, sub));
      sliced[static_cast<size_t>(sub.microbatch.value())][sub.module] +=
          least.work;
      at(sub).chain = std::max(at(sub).chain, least.chain);
    }
    Duration work = Optimizer();
    Duration chain = kZero;
    for (size_t m = 0; m < times.size(); ++m) {
      for (const ModuleId id : times[m].ids()) {
        work += std::min(times[m][id].work, sliced[m][id]);
      }
      chain = std::max(chain, Chain(times[m]));
    }
    return std::max(work / job_.parallel.pp, chain);
  }

 private:
  struct Times {
    Duration work{};
    Duration chain{};
  };

  absl::StatusOr<Microbatches> Split(int64_t instances) const {
    Partition partition;
    partition.sub_microbatch_instances.assign(job_.model.modules.size(),
                                              instances);
    return partition::SplitUnpadded(job_, step_, replica_, partition);
  }

  // Marks the modules that have a backward in a microbatch.
  void MarkBackwards(IdVector<ModuleId, ModuleTimes>* modules) const {
    for (const ModuleId m : modules->ids()) {
      ModuleTimes& own = (*modules)[m];
      own.has_backward = own.present && !job_.IsFrozen(m);
      for (const ModuleEdge& edge : job_.model.edges) {
        own.has_backward |=
            own.present && edge.to == m && (*modules)[edge.from].has_backward;
      }
    }
  }

  bool FedByTrained(const std::vector<IdVector<ModuleId, ModuleTimes>>& times,
                    const SubMicrobatch& sub) const {
    for (const ModuleEdge& edge : job_.model.edges) {
      if (edge.to == sub.module &&
          times[static_cast<size_t>(sub.microbatch.value())][edge.from]
              .has_backward) {
        return true;
      }
    }
    return false;
  }

  // Returns the least times of a module on any rank.
  Times Least(const SubMicrobatch& sub, bool fed_by_trained) const {
    Times least;
    for (int32_t r = 0; r < job_.parallel.pp; ++r) {
      const StageCost cost = costs_.Cost(WholeModule(sub.module, RankId(r)),
                                         sub.shape, fed_by_trained);
      const Duration work = cost.least_load();
      const Duration chain = cost.forward + std::min(cost.backward, cost.fused);
      if (r == 0 || work < least.work) least.work = work;
      if (r == 0 || chain < least.chain) least.chain = chain;
      if (job_.cluster.node_groups.empty() && job_.cluster.slow_gpus.empty()) {
        break;
      }
    }
    return least;
  }

  Stage WholeModule(ModuleId module, RankId rank) const {
    return {.module = module,
            .first_layer = LayerId(0),
            .num_layers = job_.model.modules[module].layers.size(),
            .rank = rank,
            .segment = SegmentId(0)};
  }

  // Returns the optimizer's time for all parameters.
  Duration Optimizer() const {
    Duration least = kZero;
    for (int32_t r = 0; r < job_.parallel.pp; ++r) {
      Partition all;
      all.num_ranks = job_.parallel.pp;
      for (const ModuleId m : job_.model.modules.ids()) {
        all.stages.push_back(WholeModule(m, RankId(r)));
      }
      const Duration own = costs_.Updates(all)[RankId(r)].optimizer;
      least = r == 0 ? own : std::min(least, own);
      if (job_.cluster.node_groups.empty() && job_.cluster.slow_gpus.empty()) {
        break;
      }
    }
    return least;
  }

  // Returns the longest path through the modules of a microbatch. Modules are
  // in the order of the data flow.
  Duration Chain(const IdVector<ModuleId, ModuleTimes>& modules) const {
    IdVector<ModuleId, Duration> until(modules.size());
    Duration longest = kZero;
    for (const ModuleId m : modules.ids()) {
      for (const ModuleEdge& edge : job_.model.edges) {
        if (edge.to == m) until[m] = std::max(until[m], until[edge.from]);
      }
      until[m] += modules[m].chain;
      longest = std::max(longest, until[m]);
    }
    return longest;
  }

  const StageCostModel& costs_;
  const JobSpec& job_;
  const partition::PackedStep& step_;
  int32_t replica_ = 0;
};

}  // namespace

absl::StatusOr<Duration> BoundOfAnyPartition(const StageCostModel& costs,
                                             const partition::PackedStep& step,
                                             int32_t replica) {
  return JobBound(costs, step, replica).Find();
}

}  // namespace pipeloom::planner
