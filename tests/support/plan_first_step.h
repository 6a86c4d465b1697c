// The first step of a batch, planned from nothing: what most tests of plans
// begin with. For test programs with the planner, of which it is a source.
#ifndef PIPELOOM_TESTS_SUPPORT_PLAN_FIRST_STEP_H_
#define PIPELOOM_TESTS_SUPPORT_PLAN_FIRST_STEP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::testing {

struct FirstStepOptions {
  std::string schedule = "pipeloom";
  int64_t evaluations = 60;
  int32_t threads = 1;
  std::optional<planner::Disturbances> robust{};
};

// Prepares a job; for `pipeloom` on its rule's partition, as its choice among
// several takes a second and has tests of its own. Keeps pointers to `strategy`
// and `costs`. Errors as those of planner::PrepareJob.
absl::StatusOr<planner::PreparedJob> PrepareByRule(
    const planner::Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample);

// Plans the first replica, prepared by PrepareByRule. Errors as those of the
// parts it is made of.
absl::StatusOr<planner::PlanResult> PlanFirstStep(
    const JobSpec& job, const BatchMetadata& batch,
    const FirstStepOptions& options = {});

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SUPPORT_PLAN_FIRST_STEP_H_
