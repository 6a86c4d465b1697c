// A configuration of a what-if study, planned and emulated.
#ifndef PIPELOOM_STUDIES_WHATIF_CASE_PLAN_H_
#define PIPELOOM_STUDIES_WHATIF_CASE_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "formats/job/job_overrides.h"
#include "ir/plan/carried_step.h"
#include "ir/plan/partition.h"
#include "studies/job/job_input.h"
#include "studies/job/planned_step.h"
#include "studies/job/study_context.h"
#include "studies/whatif/whatif_case.h"

namespace pipeloom::studies {

struct WhatIfOutcome {
  std::string error{};   // Why it cannot run; empty if it can.
  Duration step_time{};  // Mean over the steps, for the slowest replica.
  Duration lower_bound{};
  double bubble_ratio = 0;
  double epilogue_ratio = 0;
  double mfu = 0;
  // Peak memory and limit of a GPU of the rank with the least room.
  Bytes peak{};
  Bytes limit{};
  int64_t gpus = 0;
  int64_t samples = 0;  // Number of samples of a step.
  // Whether samples are cut into more pieces than in the job as it is: another
  // training, whose times are not compared.
  bool cuts_more = false;
  bool ok() const { return error.empty(); }
  // Configurations are compared by the time of a sample, as their steps may
  // have different numbers of samples.
  double seconds_per_sample() const {
    return ToSeconds(step_time) /
           static_cast<double>(std::max<int64_t>(1, samples));
  }
  double samples_per_second() const {
    return step_time > kZero
               ? static_cast<double>(samples) / ToSeconds(step_time)
               : 0;
  }
  bool operator==(const WhatIfOutcome&) const = default;
};

// A cache of operator prices by cluster and layout. Configurations with the
// same cluster and layout share the tables, which take half the time of a short
// search to make. Threads: any. Copies share their content.
class SharedPrices {
 public:
  SharedPrices();
  // Returns CostsOf(job), which may have been made for another job with the
  // same cluster, layout and profile.
  std::unique_ptr<const emulator::OpCostModel> Of(const JobInput& job) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Which layers are where in every case.
struct CasePartition {
  std::string
      name{};  // Where it comes from, with its content: for the journal.
  // Makes the partition of a case's job; empty: the strategy's own. Called from
  // several threads at a time.
  std::function<absl::StatusOr<Partition>(const JobInput& job)> make{};
};

// The plans of the job as it is, on the best partition known for it. The search
// of every case begins with them. Otherwise cases would differ less by their
// changes than by chance, as short searches end at different plans.
struct WhatIfStart {
  Partition partition{};
  // PlanResult::carried of its steps; empty: searches start from nothing.
  std::vector<std::shared_ptr<const CarriedStep>> lessons{};
};

// The input that all cases have in common.
struct WhatIfInput {
  formats::JobTemplate job{};
  JobInput base{};  // The job as it is, its batch and profile.
  std::string costs = "profile";
  bool assigned = false;  // Whether an option set the assignment of `base`.
  int64_t steps = 1;
  int64_t replicas = 0;
  std::string schedule{};  // Empty: the job's.
  CasePartition partition{};
  SearchOptions search{};
  SharedPrices prices{};
  WhatIfStart start{};
};

// Plans the first case, the job as it is, on the partition that the strategy
// chooses for it and on those that it chooses for other cases (at most the four
// that most of them have), and returns the fastest. The result has no lessons
// if the job can run on none of these. Cancelled: a stop was requested.
// REQUIRES: at least one case.
absl::StatusOr<WhatIfStart> PlanStart(const WhatIfInput& input,
                                      const std::vector<WhatIfCase>& cases,
                                      int32_t threads,
                                      const StudyContext& context);

// Warns once of each device that a case has and the job as it is does not, and
// that another's profile or its rates alone price (studies::PriceNote).
void WarnOfPrices(const WhatIfInput& input,
                  const std::vector<WhatIfCase>& cases,
                  const StudyContext& context);

// Runs one case on this thread, on the partition that the strategy chooses for
// it and, if another, on that of `input.start`; the faster counts. Errors of
// the configuration are in the outcome. Cancelled: a stop was requested.
// `planned` (may be null) gets the first step, except for cases that are not a
// job of their own (slow_rank, recompute_all).
absl::StatusOr<WhatIfOutcome> RunCase(const WhatIfInput& input,
                                      const WhatIfCase& what,
                                      const StudyContext& context,
                                      PlannedStep* planned = nullptr);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_WHATIF_CASE_PLAN_H_
