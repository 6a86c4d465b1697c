#include "planner/trainer/trainer_partitions.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "partition/placement/layer_partition.h"
#include "partition/placement/placement.h"
#include "partition/placement/recipe.h"
#include "planner/strategies/representative_step.h"

namespace pipeloom::planner {
namespace {

using Units = std::vector<partition::LayerUnit>;

// Cuts the chain into `runs` runs, each of at least one unit with a weight
// where there are enough; with `encoders_first` all modules before the last one
// are in the first run, with at least one unit of the last one. nullopt: there
// are too few units.
std::optional<Partition> Cut(const JobSpec& job, const Units& units,
                             int32_t runs, bool encoders_first) {
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  const ModuleId last(job.model.modules.size() - 1);
  // The units of the first run that stay together.
  size_t first = 0;
  if (encoders_first) {
    while (first + 1 < units.size() && units[first].module != last) ++first;
  }
  std::vector<int64_t> weights = {0};
  for (size_t i = 0; i < units.size(); ++i) {
    if (i > first) weights.push_back(0);
    weights.back() += std::max<int64_t>(1, units[i].weight);
  }
  if (static_cast<int32_t>(weights.size()) < runs) return std::nullopt;
  std::vector<int32_t> cuts;
  for (const int32_t cut : partition::SplitLayers(weights, runs)) {
    cuts.push_back(cut == 0 ? 0 : cut + static_cast<int32_t>(first));
  }
  cuts.push_back(static_cast<int32_t>(units.size()));
  AppendStagesAt(units, cuts, &partition);
  return partition;
}

// Returns the same with the second segment going back.
Partition Turned(Partition partition) {
  for (Stage& stage : partition.stages) {
    if (stage.segment.value() % 2 == 0) continue;
    stage.rank = RankId(partition.num_ranks - 1 - stage.rank.value());
  }
  return partition;
}

}  // namespace

absl::StatusOr<std::vector<Partition>> TrainerPartitions(
    const JobSpec& job, const TrainerLimits& trainer,
    absl::Span<const partition::LayerUnit> units) {
  std::vector<Partition> partitions;
  absl::Status why;
  const auto add = [&](const Partition& partition) {
    absl::Status status = ValidatePartition(partition, job.model);
    if (status.ok()) status = CheckTrainerPartition(trainer, job, partition);
    if (status.ok()) status = partition::CheckPartitionRules(job, partition);
    if (!status.ok()) {
      if (why.ok()) why = std::move(status);
      return;
    }
    if (std::find(partitions.begin(), partitions.end(), partition) ==
        partitions.end()) {
      partitions.push_back(partition);
    }
  };
  const Units by_time(units.begin(), units.end());
  Units by_count = by_time;
  for (partition::LayerUnit& unit : by_count) {
    unit.weight = 0;
    for (int32_t i = 0; i < unit.num_layers; ++i) {
      const LayerId layer(unit.first_layer.value() + i);
      unit.weight +=
          MayRecompute(job.model.modules[unit.module].layers[layer]) ? 1 : 0;
    }
  }
  for (int32_t v = 1; v <= trainer.most_stages; ++v) {
    std::vector<Partition> cut;
    for (const Units* chain : {&by_time, &std::as_const(by_count)}) {
      std::optional<Partition> made =
          Cut(job, *chain, v * job.parallel.pp, trainer.encoders_first);
      if (made.has_value()) cut.push_back(*std::move(made));
    }
    if (!trainer.encoders_first) {
      PIPELOOM_ASSIGN_OR_RETURN(
          Partition by_parameters,
          partition::ConcatenatedPartition(
              job, v, partition::LayerWeight::kParameters));
      cut.push_back(std::move(by_parameters));
    }
    if (v == 1 && cut.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(Partition usual,
                                partition::ConcatenatedPartition(
                                    job, 1, partition::LayerWeight::kCount));
      cut.push_back(std::move(usual));
    }
    for (const Partition& partition : cut) {
      add(partition);
      if (v == 2 && trainer.vee) add(Turned(partition));
    }
  }
  if (partitions.empty()) return why;
  return partitions;
}

}  // namespace pipeloom::planner
