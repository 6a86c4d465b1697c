// One step that stands for all of a job's: what strategies look at that plan
// once for a job, and never again for a batch.
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

class RepresentativeStep {
 public:
  // Packs the sample into one replica's steps, one after another, and takes the
  // one with the median work (the lower of two; a short last step only if
  // there is no other). InvalidArgument: the sample has no work for the model.
  // Keeps a reference to `costs`. Milliseconds.
  static absl::StatusOr<RepresentativeStep> Create(
      const emulator::StageCostModel& costs, const BatchMetadata& sample);

  // The modules' layers in units that no stage boundary may cut, in data-flow
  // order, each weighing its forward, backward and weight gradient of the whole
  // step, in ns. Modules that the step does not use weigh nothing.
  const std::vector<partition::LayerUnit>& units() const { return units_; }

  // Emulated time of the step planned with that strategy and partition;
  // nullopt when no plan fits the memory.
  absl::StatusOr<std::optional<Duration>> PlannedTime(
      const Strategy& strategy, const Partition& partition) const;
  // Index of the partition with the least PlannedTime, the first of equal ones,
  // and the first if none fits. REQUIRES: there is one.
  absl::StatusOr<size_t> Fastest(const Strategy& strategy,
                                 absl::Span<const Partition> partitions) const;

 private:
  explicit RepresentativeStep(const emulator::StageCostModel& costs)
      : costs_(&costs) {}

  const emulator::StageCostModel* costs_;
  partition::PackedStep packed_{};
  std::vector<partition::LayerUnit> units_{};
};

// Units [cuts[i], cuts[i + 1]) go to position i: rank i % num_ranks, segment
// partition->num_segments + i / num_ranks; a position over a module boundary
// becomes one stage a module. As partition::AppendStages, with given cuts.
void AppendStagesAt(const std::vector<partition::LayerUnit>& units,
                    const std::vector<int32_t>& cuts, Partition* partition);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_REPRESENTATIVE_STEP_H_
