// Emulation of a changed plan, and planning of a batch for variants of a job.
// These calls need no queue.
#ifndef PIPELOOM_SERVICE_CORE_WHAT_IF_H_
#define PIPELOOM_SERVICE_CORE_WHAT_IF_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/profile/device_profile.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "proto/convert/batch_proto.h"
#include "service/jobs/job_request.h"
#include "service/jobs/served_job.h"

namespace pipeloom::service {

// Scales the times of a plan and emulates it. InvalidArgument names the field:
// a factor out of range, or a rank or module that is not in the plan.
absl::StatusOr<v1::EmulateResponse> EmulatePlan(
    const ExecutionPlan& plan, const v1::EmulateRequest& request);

struct WhatIfLimits {
  convert::BatchLimits batch{};
  int64_t tasks = 400'000;
  int32_t threads = 1;
};

// Plans the batch for each variant and returns the figures of its slowest
// replica, among the first 8 replicas. A variant that cannot be planned has the
// error in its row. InvalidArgument: no or too many variants, or an invalid
// batch. Cancelled: `stop` was requested.
absl::StatusOr<v1::WhatIfResponse> PlanVariants(
    const JobSpec& job, const v1::WhatIfRequest& request,
    const ShippedFiles& files, const ProfileSource& profiles,
    const WhatIfLimits& limits, const std::stop_token& stop);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_WHAT_IF_H_
