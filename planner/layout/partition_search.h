// The search for a job's partition, run once before training: how many segments
// each module has, where its layers are cut, on which ranks they lie, and how
// many instances a sub-microbatch has. A partition is judged by the emulated
// time of sample steps, planned with it by a strategy under the job's memory
// limit with a small, fixed number of evaluations.
//
// It starts from DIP's rule, the same with other sizes and segments, modules on
// ranks of their own, and all modules in one chain. From the best, one choice
// after the other is changed as long as a change helps; then units of layers
// cross borders. A partition that is 2 % over the best on the first sample step
// is not judged on the others. The best few of several recipes
// (planner/layout/finalists.h) and DIP's rule are then judged on more steps,
// and the best of these with more effort and the quick plans that are made in
// every step as well; those 3 % behind on the first of these steps are not
// judged on the rest (more effort changed the times of 8 partitions of
// dip-vlm-l on 16 ranks by at most 2.7 %). The answer is DIP's rule, or the
// caller's start, unless another is faster by more than the standard error of
// the mean difference. Each step has a weight, the number of the sample's steps
// that it represents; the heaviest is always among them, as it shows what fits
// and how full memory gets (planner/step/sample_steps.h).
#ifndef PIPELOOM_PLANNER_LAYOUT_PARTITION_SEARCH_H_
#define PIPELOOM_PLANNER_LAYOUT_PARTITION_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
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

// Limits of the search.
struct PartitionSearchOptions {
  int32_t partitions = 120;  // The most partitions to try.
  // Factor on `partitions`, 1 to 1,000. Above 1, a search that is at an optimum
  // of its moves goes on from the next best partition, to show what a longer
  // run would find.
  int32_t effort = 1;
  int64_t evaluations = 12;  // Schedules for each step and partition.
  int32_t steps = 3;         // Sample steps that each partition is judged by.
  int32_t final_steps = 8;   // Sample steps that the finalists are judged by.
  uint64_t seed = 1;
  int32_t threads = 1;
  // A partition that is judged first and is the answer unless another is better
  // beyond doubt, such as the strategy's own. None: DIP's rule.
  std::optional<Partition> start = {};
  std::stop_token stop = {};
  // Whether a stopped search plans by its first partition to the end. If not,
  // it returns CancelledError when stopped before that.
  bool needs_answer = true;
  // Returns whether the time is over; results then depend on the machine.
  std::function<bool()> expired = {};
  // Called by the caller's thread with the number of partitions tried so far
  // and the best time.
  std::function<void(int32_t tried, Duration best)> progress = {};
};

// The best partition and its times.
struct PartitionSearchResult {
  Partition partition{};
  // Weighted mean of the sample steps that fit, judged with more effort.
  Duration step_time{};
  // The same by the start; 0 if fewer steps fit by it, or none.
  Duration rule_time{};
  // Total weight of the sample steps that do not fit, the least of any
  // partition tried, and of all steps. Times are means of the others.
  int32_t misfits = 0;
  int32_t judged = 0;
  std::string misfit{};  // Why one of them does not fit.
  int32_t tried = 0;
  std::string recipe{};  // For display.
};

// Searches for a partition. Never worse than the start on its sample steps.
// Equal options give equal results for any number of threads (unless `expired`
// cuts the search short); a stop request ends it with its best so far. Takes
// seconds.
//
// Returns ResourceExhausted if no partition tried fits the memory on any sample
// step, and InvalidArgument if the sample has no work for the model or no cut
// keeps the job's rules.
absl::StatusOr<PartitionSearchResult> SearchPartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const PartitionSearchOptions& options);

// The tasks of a step beyond which ImprovePartition does not search: planning a
// step takes seconds then, and so would every partition tried.
inline constexpr int64_t kMostSearchedTasks = 40'000;

// Does the same from a strategy's own partition, with which every job gets an
// answer: `own`, with `tried` 0, if steps have too many tasks for a search or
// no partition tried fits the memory (planning a step then says what is
// missing).
absl::StatusOr<PartitionSearchResult> ImprovePartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, Partition own, PartitionSearchOptions options);

// The steps that partitions are judged by. The first of `steps` decides whether
// a partition is judged on the others.
struct JudgedSteps {
  std::vector<WeighedStep> steps{};
  std::vector<WeighedStep> finals{};  // For finalists; if empty, `steps`.
};

// Does the same on given steps. REQUIRES: there is at least one.
absl::StatusOr<PartitionSearchResult> SearchPartitionOn(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const JudgedSteps& steps,
    const PartitionSearchOptions& options);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_PARTITION_SEARCH_H_
