#include "planner/strategies/representative_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "planner/step/plan_step.h"
#include "planner/step/sample_steps.h"

namespace pipeloom::planner {
namespace {

// Keeps sums of weights in range, whatever the layers are.
constexpr int64_t kMaxWeight = int64_t{1} << 48;

Partition WholeMicrobatches(const JobSpec& job) {
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  return partition;
}

// Returns the time of forward, backward and weight gradient of layers on a
// sub-microbatch.
Duration TimeOf(const emulator::StageCostModel& costs, bool needs_input_grad,
                LayerId first, int32_t count, const SubMicrobatch& sub) {
  const emulator::StageCost cost = costs.Cost({.module = sub.module,
                                               .first_layer = first,
                                               .num_layers = count,
                                               .rank = RankId(0),
                                               .segment = SegmentId(0)},
                                              sub.shape, needs_input_grad);
  return cost.all_passes();
}

// Returns, indexed by module, whether a gradient goes back through its layers.
IdVector<ModuleId, bool> HaveBackward(const JobSpec& job) {
  IdVector<ModuleId, bool> result(job.model.modules.size());
  for (const ModuleId m : job.model.modules.ids()) {
    result[m] = !job.IsFrozen(m);
    for (const ModuleEdge& edge : job.model.edges) {
      if (edge.to == m && result[edge.from]) result[m] = true;
    }
  }
  return result;
}

struct PackedWork {
  partition::PackedStep packed{};
  Microbatches microbatches{};
  Duration work{};
};

}  // namespace

absl::StatusOr<RepresentativeStep> RepresentativeStep::Create(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    std::stop_token stop) {
  JobSpec job = costs.job();
  job.parallel.dp = 1;
  const IdVector<ModuleId, bool> backward = HaveBackward(job);
  const Partition whole = WholeMicrobatches(job);
  std::vector<PackedWork> steps;
  for (int64_t first = 0;
       first < sample.samples.size() && !AreEnough(steps.size(), first);) {
    auto packed = partition::PackStep(job, sample, first);
    if (!packed.ok()) {
      // The rest of the sample has no work for the model.
      if (!steps.empty()) break;
      return absl::InvalidArgumentError(absl::StrFormat(
          "the sample of batches that a partition is chosen by: %s",
          packed.status().message()));
    }
    first += packed->num_samples;
    PackedWork step{.packed = *std::move(packed)};
    PIPELOOM_ASSIGN_OR_RETURN(
        step.microbatches,
        partition::SplitUnpadded(job, step.packed, /*replica=*/0, whole));
    if (!steps.empty() && step.microbatches.num_microbatches <
                              steps.front().microbatches.num_microbatches) {
      break;
    }
    for (const SubMicrobatch& sub : step.microbatches.sub_microbatches) {
      step.work += TimeOf(costs, backward[sub.module], LayerId(0),
                          job.model.modules[sub.module].layers.size(), sub);
    }
    steps.push_back(std::move(step));
  }
  if (steps.empty()) {
    return absl::InvalidArgumentError(
        "the sample of batches that a partition is chosen by is empty");
  }
  std::stable_sort(
      steps.begin(), steps.end(),
      [](const PackedWork& a, const PackedWork& b) { return a.work < b.work; });
  PackedWork& median = steps[(steps.size() - 1) / 2];

  RepresentativeStep result(costs);
  result.stop_ = std::move(stop);
  IdVector<ModuleId, IdVector<LayerId, int64_t>> weights(
      job.model.modules.size());
  for (const ModuleId m : weights.ids()) {
    weights[m].assign(job.model.modules[m].layers.size(), 0);
  }
  for (const SubMicrobatch& sub : median.microbatches.sub_microbatches) {
    for (const LayerId layer : weights[sub.module].ids()) {
      int64_t& weight = weights[sub.module][layer];
      weight = std::min(
          kMaxWeight,
          weight + TimeOf(costs, backward[sub.module], layer, 1, sub).count());
    }
  }
  for (const ModuleId m : weights.ids()) {
    partition::AppendUnits(m, job.model.modules[m], weights[m],
                           /*glue_loss_head=*/false, &result.units_);
  }
  result.packed_ = std::move(median.packed);
  return result;
}

absl::StatusOr<std::optional<Duration>> RepresentativeStep::PlannedTime(
    const Strategy& strategy, const Partition& partition) const {
  const PreparedJob job{
      .strategy = &strategy, .costs = costs_, .partition = partition};
  SearchBudget once;
  once.max_evaluations = 1;
  once.stop = stop_;
  const auto result =
      PlanStep(job, {.packed = &packed_, .budget = once, .needs_bound = false});
  if (stop_.stop_requested()) return absl::CancelledError("stopped");
  if (result.ok()) return result->predicted.step_time();
  if (absl::IsResourceExhausted(result.status())) return std::nullopt;
  return result.status();
}

absl::StatusOr<size_t> RepresentativeStep::Fastest(
    const Strategy& strategy, absl::Span<const Partition> partitions) const {
  size_t best = 0;
  std::optional<Duration> best_time;
  for (size_t i = 0; i < partitions.size(); ++i) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> time,
                              PlannedTime(strategy, partitions[i]));
    if (!time.has_value() || (best_time.has_value() && *time >= *best_time)) {
      continue;
    }
    best_time = time;
    best = i;
  }
  return best;
}

void AppendStagesAt(const std::vector<partition::LayerUnit>& units,
                    const std::vector<int32_t>& cuts, Partition* partition) {
  const int32_t first_segment = partition->num_segments;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    const SegmentId segment(first_segment + position / partition->num_ranks);
    for (int32_t u = cuts[i]; u < cuts[i + 1]; ++u) {
      const partition::LayerUnit& unit = units[static_cast<size_t>(u)];
      if (u > cuts[i]) {
        Stage& last = partition->stages[StageId(partition->stages.size() - 1)];
        if (last.module == unit.module) {
          last.num_layers += unit.num_layers;
          continue;
        }
      }
      partition->stages.push_back(
          {.module = unit.module,
           .first_layer = unit.first_layer,
           .num_layers = unit.num_layers,
           .rank = RankId(position % partition->num_ranks),
           .segment = segment});
    }
    partition->num_segments = segment.value() + 1;
  }
}

}  // namespace pipeloom::planner
