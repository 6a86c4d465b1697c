// Replicas that wait for each other within passes. If the experts of a layer
// are spread over replicas, these wait in each dispatch and combine of tokens;
// with ZeRO-3 all wait in each gather of weights, with ZeRO-2 in each reduction
// of gradients. Such passes have to run in one order on all of these replicas
// (planner/job/common_order.h), and a pass ends when it has on the slowest.
#ifndef PIPELOOM_EMULATOR_CLUSTER_MEETING_REPLICAS_H_
#define PIPELOOM_EMULATOR_CLUSTER_MEETING_REPLICAS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "emulator/step/emulate_options.h"
#include "ir/ids.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// Returns how many neighbouring replicas meet: 0 to n - 1, the next n, ...; 1
// if each is by itself. With ZeRO-3 under a pipeline whose weights stay
// gathered for the step (TrainingSetup::gathered_in_pipeline), weights join
// none.
int32_t ReplicasThatMeet(const JobSpec& job);

// Returns whether replicas that meet do so in passes of the module.
bool MeetsInPasses(const JobSpec& job, ModuleId module);

// Work of a replica that another, which it meets, does not have as much of.
struct UnlikeWork {
  int32_t replica = 0;  // Relative to the first of those that meet.
  MicrobatchId microbatch{};
  ModuleId module{};
  // Sub-microbatches of the replica, and of the first of those that meet.
  int32_t parts = 0;
  int32_t first_parts = 0;
};
// Returns the first microbatch that has not as many sub-microbatches of a
// module in whose passes replicas meet as that of the first replica, so that no
// plans of theirs can run together; absent: there is none. `replicas`: those of
// replicas that meet, in their order. O(sub-microbatches).
std::optional<UnlikeWork> FindUnlikeWork(
    const JobSpec& job, absl::Span<const Microbatches> replicas);

// Plans of replicas that meet, emulated together.
struct MeetingStep {
  // The first rank on which replicas that meet do not have the same passes in
  // one order. The plans cannot run together.
  std::optional<RankId> different{};
  // The least time of the step, if every pass lasts as long as the longest of
  // those that meet; without waiting for others to begin. 0 if `different`.
  Duration step_time{};
};

// Emulates the plans of replicas 0, 1, ... of the job, not necessarily all.
// Errors are those of EmulateStep. O(instructions + dependencies) of all.
absl::StatusOr<MeetingStep> EmulateMeeting(
    const JobSpec& job, absl::Span<const ExecutionPlan* const> replicas);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CLUSTER_MEETING_REPLICAS_H_
