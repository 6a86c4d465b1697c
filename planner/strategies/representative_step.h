// One step that stands for all steps of a job, for strategies that plan once a
// job and not for each batch.
#ifndef PIPELOOM_PLANNER_STRATEGIES_REPRESENTATIVE_STEP_H_
#define PIPELOOM_PLANNER_STRATEGIES_REPRESENTATIVE_STEP_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "partition/batching/batch_split.h"
#include "partition/placement/layer_chain.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// The median step of a sample of batches.
class RepresentativeStep {
 public:
  // Packs the sample into one replica's steps, one after another, and takes the
  // one with the median work (the lower of two; a short last step only if there
  // is no other). Keeps a reference to `costs`. Takes milliseconds.
  // InvalidArgument if the sample has no work for the model. After a stop
  // request, PlannedTime and Fastest return Cancelled.
  static absl::StatusOr<RepresentativeStep> Create(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      std::stop_token stop = {});

  // Returns the modules' layers in units that no stage boundary may cut, in
  // data-flow order. The weight of each is the time of its forward, backward
  // and weight gradient in the whole step, in ns; 0 for modules that the step
  // does not use.
  const std::vector<partition::LayerUnit>& units() const { return units_; }

  // Returns the emulated time of the step planned with that strategy and
  // partition; nullopt if no plan fits the memory.
  absl::StatusOr<std::optional<Duration>> PlannedTime(
      const Strategy& strategy, const Partition& partition) const;
  // Returns the index of the partition with the least PlannedTime: the first on
  // ties, and 0 if none fits. REQUIRES: there is a partition.
  absl::StatusOr<size_t> Fastest(const Strategy& strategy,
                                 absl::Span<const Partition> partitions) const;

 private:
  explicit RepresentativeStep(const emulator::StageCostModel& costs)
      : costs_(&costs) {}

  const emulator::StageCostModel* costs_;
  std::stop_token stop_{};
  partition::PackedStep packed_{};
  std::vector<partition::LayerUnit> units_{};
};

// Appends stages like partition::AppendStages, but with given cuts: units
// [cuts[i], cuts[i + 1]) go to position i, which is on rank i % num_ranks in
// segment partition->num_segments + i / num_ranks. A position across a module
// boundary becomes one stage for each module.
void AppendStagesAt(const std::vector<partition::LayerUnit>& units,
                    const std::vector<int32_t>& cuts, Partition* partition);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_REPRESENTATIVE_STEP_H_
