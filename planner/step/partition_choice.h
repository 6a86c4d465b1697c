// The choice among several partitions of a job, made once before training: the
// first is the strategy's own rule, and stays unless another is surely faster.
//
// A partition is large if its steps have more tasks than a search of 100 ms can
// work on (`many_tasks`). If all partitions are large, all are searched.
// Otherwise only the first large one is judged, by quick plans alone, which
// need no search; the other large ones are left out. Where judging would take
// too long, only the first three partitions are judged.
//
// The rest are compared on the same sample steps. All plan two steps; those
// within 3 % of the best plan five. The fastest wins over the first partition
// if it is clearly faster: its mean gain over the steps is more than twice the
// standard error of that mean. If it is faster but not clearly, all steps of
// the sample are planned, where that does not take too long, and it wins if
// their mean is 1 % shorter.
//
// The time of a step is the shortest of the strategy's plan and of the quick
// plans that it makes in every step (StartsFromOthers::QuickRivals). Each
// sample step has a weight, the number of steps that it stands for; the
// heaviest step is always one of them (planner/step/sample_steps.h). The
// numbers here were chosen with the jobs of docs/results.md in view, so that
// table is no prediction for other jobs.
#ifndef PIPELOOM_PLANNER_STEP_PARTITION_CHOICE_H_
#define PIPELOOM_PLANNER_STEP_PARTITION_CHOICE_H_

#include <cstdint>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/plan/partition.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

struct PartitionChoiceOptions {
  // Schedules for each step and partition; of the partition with the fewest
  // tasks. Others get as many as take the same time. Up to 200 where a third of
  // `work` has room for them in a round.
  int64_t evaluations = 12;
  // The most evaluations times tasks of all rounds; fewer steps are judged
  // where tasks are many. About a microsecond each.
  int64_t work = 3'000'000;
  // A partition whose steps have more tasks is large. The same number as in
  // planner/layout/partition_search.cc. On step-3 with 47 microbatches of
  // mixed samples on 16 ranks one with 14,900 tasks is 6 % faster by
  // evaluations than one with 5,400, and in 100 ms takes 8.8 s for the
  // other's 7.1.
  int64_t many_tasks = 8000;
  uint64_t seed = 1;
  int32_t threads = 1;  // Results do not depend on them.
  std::stop_token stop{};
};

// Returns the index of the chosen partition. A partition that fits fewer steps
// than the first, or that the strategy cannot plan, is never chosen; one that
// fits more is. Equal arguments give
// equal results. REQUIRES: at least one partition, all valid for the job.
// InvalidArgument if the sample has no work for the model. Cancelled: a stop
// was requested.
absl::StatusOr<size_t> ChoosePartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const std::vector<Partition>& partitions,
    const PartitionChoiceOptions& options = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PARTITION_CHOICE_H_
