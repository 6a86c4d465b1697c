// A step planned for all its replicas, with its figures as a whole. The step
// ends when its slowest replica ends.
#ifndef PIPELOOM_STUDIES_JOB_PLANNED_STEP_H_
#define PIPELOOM_STUDIES_JOB_PLANNED_STEP_H_

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/step/plan_step.h"
#include "studies/job/job_input.h"
#include "studies/job/study_context.h"

namespace pipeloom::studies {

// Returns the strategies that are compared unless others are named: all except
// the partial versions of dip, which only its ablation needs.
std::vector<std::string> UsualSchedules();

struct PlannedStep {
  int64_t step = 0;
  std::vector<planner::PlanResult> replicas{};
  Duration search_time{};  // Wall time, all replicas.
  int64_t num_samples = 0;
  // No plan of these microbatches on any partition of the job is faster, for
  // the slowest replica (planner/bounds/job_bound.h). 0 if the planner changed
  // the microbatches.
  Duration any_partition_bound{};
  // The least time of replicas that meet within passes, if they can run
  // together (emulator/cluster/meeting_replicas.h); else 0.
  Duration together{};

  // Returns the step time of the slowest replica, with its waits for replicas
  // that it meets.
  Duration step_time() const;
  // Return the largest lower bound of the replicas, and its source.
  Duration lower_bound() const;
  const char* bound_source() const;
  double gap_ratio() const;
  // Returns the gap to any_partition_bound; 0 if that is.
  double any_partition_gap() const;
  // Return the share of time that all ranks of all replicas are idle, or in
  // their epilogues.
  double bubble_ratio() const;
  double epilogue_ratio() const;
  double mfu() const;
  // Returns the largest peak of any replica, indexed by rank.
  std::vector<Bytes> peak_bytes() const;
  Bytes peak() const;
  int64_t evaluations() const;
  const planner::PlanResult& slowest() const;
};

// The means of several steps: ratios are weighted by step time.
struct StepMeans {
  Duration step_time{};
  Duration search_time{};
  double gap_ratio = 0;
  double any_partition_gap = 0;
  double bubble_ratio = 0;
  double epilogue_ratio = 0;
  double mfu = 0;
  Bytes peak{};  // The largest of any step.
};
StepMeans MeansOf(const std::vector<PlannedStep>& steps);

// Returns a remark if this MFU, a share of the 16-bit peak, is above what the
// job's GPUs can reach: 1, or as many times 1 as the job's fp8 or FP4 products
// are faster than 16-bit ones. None otherwise.
std::vector<std::string> MfuNotes(const JobSpec& job, double mfu);

// Returns a remark if replicas meet within passes
// (emulator/cluster/meeting_replicas.h) and the step's plans cannot run
// together, or take longer together than each by itself. None otherwise, or for
// a step of one replica.
std::vector<std::string> MeetingNotes(const emulator::StageCostModel& costs,
                                      const PlannedStep& step);

// Rates of the whole job over several steps.
struct Throughput {
  double samples_per_second = 0;
  // Tokens that pass through the backbone, those of images and clips included.
  // Replicas that were not planned count as the mean of those that were.
  double tokens_per_second = 0;
  double tokens_per_gpu = 0;  // A second.
  // Operations of the model (recomputation not counted), a second.
  double flops_per_gpu = 0;
};
Throughput ThroughputOf(const JobSpec& job,
                        const std::vector<PlannedStep>& steps);

// Plans a step for `replicas` replicas. Tells `progress` how many replicas of
// all steps are planned. Searches under a deadline go on from what the replicas
// before taught, and `before`, the steps before. Cancelled: a stop was
// requested; with `keeps_cut`, only if a replica has no plan yet. The plans of
// searches that a stop has cut short are checked as all are, but slower.
absl::StatusOr<PlannedStep> PlanReplicas(
    const planner::PreparedJob& prepared, const partition::PackedStep& packed,
    int64_t step, int32_t replicas, const SearchSettings& settings,
    const std::stop_token& stop, const ProgressCallback& progress,
    absl::string_view detail = "", absl::Span<const PlannedStep> before = {},
    bool keeps_cut = false);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_JOB_PLANNED_STEP_H_
