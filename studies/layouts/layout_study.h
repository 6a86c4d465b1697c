// The search over parallel layouts of a job.
#ifndef PIPELOOM_STUDIES_LAYOUTS_LAYOUT_STUDY_H_
#define PIPELOOM_STUDIES_LAYOUTS_LAYOUT_STUDY_H_

#include "absl/status/statusor.h"
#include "planner/layout/layout_search.h"
#include "planner/strategy.h"
#include "studies/job/job_input.h"
#include "studies/job/study_context.h"

namespace pipeloom::studies {

// Returns a function that prices the job's operators for any layout, by the
// input's profiles.
planner::PriceLayout PricesOf(const JobInput& input);

// Searches layouts with the input's prices and the context's progress and stop
// token, which stand instead of those in `options`. After a stop request,
// returns the results found so far; Cancelled: there are none.
absl::StatusOr<planner::LayoutSearchResult> SearchLayouts(
    const JobInput& input, const planner::Strategy& strategy,
    planner::LayoutSearchOptions options, const StudyContext& context);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_LAYOUTS_LAYOUT_STUDY_H_
