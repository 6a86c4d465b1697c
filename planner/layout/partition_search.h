// The search for a job's partition, run once before training: how many segments
// each module has, where its layers are cut, on which ranks they lie, how many
// instances a sub-microbatch has. A partition is judged by the emulated time of
// sample steps, planned with it by a strategy under the job's memory limit and
// a small, fixed number of evaluations.
//
// Starts: DIP's rule, the same with other sizes and segments, modules on ranks
// of their own, all modules in one chain. From the best, one choice after the
// other is changed as long as one of the changes helps; then units of layers
// cross borders. One that is 2 % over the best on the first sample step is not
// judged on the others. The best few and DIP's rule are then judged on more
// steps, and the best of these with more effort as well; the answer is DIP's
// rule if no other is better by more than twice the standard error of the mean
// difference over the steps. Steps stand for the sample by weight, and its
// heaviest is always among them: what fits, and how full memory gets, shows
// there (planner/step/sample_steps.h).
#ifndef PIPELOOM_PLANNER_LAYOUT_PARTITION_SEARCH_H_
#define PIPELOOM_PLANNER_LAYOUT_PARTITION_SEARCH_H_

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "planner/step/sample_steps.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

struct PartitionSearchOptions {
  int32_t partitions = 120;  // How many are tried, at most.
  // Times as many, and where the search would end at an optimum of its moves it
  // goes on from the next best: what a longer run would find. 1 to 1,000.
  int32_t effort = 1;
  int64_t evaluations = 12;  // Schedules a step of each.
  int32_t steps = 3;         // Sample steps each is judged by,
  int32_t final_steps = 8;   // and the finalists.
  uint64_t seed = 1;
  int32_t threads = 1;
  std::stop_token stop = {};
  // Says that the time is over; results then depend on the machine.
  std::function<bool()> expired = {};
  // Called by the caller's thread: partitions tried so far, and the best time.
  std::function<void(int32_t tried, Duration best)> progress = {};
};

struct PartitionSearchResult {
  Partition partition{};
  // Mean of the sample steps by weight, judged with more effort.
  Duration step_time{};
  // Of DIP's rule, judged the same; 0: fewer steps fit by it, or none.
  Duration rule_time{};
  // Weights of the sample steps that do not fit, of all: as few as any
  // partition tried leaves. The times are of the others.
  int32_t misfits = 0;
  int32_t judged = 0;
  std::string misfit{};  // Why one of them does not.
  int32_t tried = 0;
  std::string recipe{};  // For people.
};

// Never worse than DIP's rule on its sample steps. The same options give the
// same result for any number of threads (unless `expired` cuts it short); a
// stop request ends it with its best so far. ResourceExhausted: no partition
// tried fits the memory on any sample step. InvalidArgument: the sample has no
// work for the model, or no cut keeps the job's rules. Seconds.
absl::StatusOr<PartitionSearchResult> SearchPartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const PartitionSearchOptions& options);

// What partitions are judged by; the first of `steps` decides whether one is
// judged on the others.
struct JudgedSteps {
  std::vector<WeighedStep> steps{};
  std::vector<WeighedStep> finals{};  // For finalists; empty: `steps`.
};

// The same on steps that are given, of which there is at least one.
absl::StatusOr<PartitionSearchResult> SearchPartitionOn(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const JudgedSteps& steps,
    const PartitionSearchOptions& options);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_PARTITION_SEARCH_H_
