// Plans of sample steps, made once before a job's first step. The searches of
// the job's steps use them as starts: in some seconds a search finds better
// orders and memory choices than in 100 ms, and similar steps can use them too
// (planner/step/carried_step.h).
#ifndef PIPELOOM_PLANNER_JOB_WARM_UP_H_
#define PIPELOOM_PLANNER_JOB_WARM_UP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "planner/core/search_budget.h"
#include "planner/step/carried_step.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// Plans up to four steps of the sample, evenly spread over how much work they
// are, each for an equal share of the budget, and returns what they teach.
// Steps that do not fit are left out. They tell how quick plans did
// (CarriedStep::quick_ratio) only if those of all steps lost by far. Returns
// nothing for strategies that do not go on from earlier steps. Cancelled: the
// budget was abandoned. InvalidArgument: the sample makes no step.
absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> WarmUp(
    const PreparedJob& job, const BatchMetadata& sample, uint64_t seed,
    const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_JOB_WARM_UP_H_
