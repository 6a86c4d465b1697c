#include "studies/layouts/layout_study.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "emulator/cost/profile_cost.h"

namespace pipeloom::studies {

planner::PriceLayout PricesOf(const JobInput& input) {
  JobInput priced = input;
  priced.batch = {};
  const std::shared_ptr<const emulator::OpCostModel> first = CostsOf(priced);
  return [priced, first](const JobSpec& job) {
    // Layouts are many, so they share the large tables of measurements.
    if (job.cluster == priced.job.cluster) {
      auto costs = emulator::OpCostsForLayout(*first, job.parallel);
      if (costs != nullptr) return costs;
    }
    JobInput one = priced;
    one.job = job;
    return CostsOf(one);
  };
}

absl::StatusOr<planner::LayoutSearchResult> SearchLayouts(
    const JobInput& input, const planner::Strategy& strategy,
    planner::LayoutSearchOptions options, const StudyContext& context) {
  const ProgressCallback progress =
      context.StartProgress("searching layouts", 100);
  options.progress = [&](int32_t done, int32_t all, Duration best) {
    progress(int64_t{100} * done / std::max(all, 1),
             absl::StrCat("best ", FormatDuration(best)));
  };
  options.search.stop = context.stop;
  return planner::SearchLayout(strategy, input.job, SampleOf(input.batch),
                               PricesOf(input), options);
}

}  // namespace pipeloom::studies
