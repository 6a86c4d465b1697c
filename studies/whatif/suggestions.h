// Suggestions: changes that would make a step shorter. Each has been tried, by
// planning and emulation or by emulation alone.
#ifndef PIPELOOM_STUDIES_WHATIF_SUGGESTIONS_H_
#define PIPELOOM_STUDIES_WHATIF_SUGGESTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"
#include "studies/whatif/whatif_run.h"

namespace pipeloom::studies {

struct Suggestion {
  std::string label{};
  Duration step_time{};  // Step time with the change.
  Duration gain{};       // Time saved by the change.
  // The change, for `whatif --set`; empty for changes of a bare plan.
  WhatIfCase change{};
  // Whether it was planned on the partition that SuggestForJob was given, not
  // on that of its own.
  bool on_given = false;
};

// Returns the source of a partition for all cases that keep the job's model and
// number of pipeline ranks; other cases cannot run on it.
CasePartition OnPartition(const Partition& partition, const JobSpec& job);

// Tries changes of a job: other layouts, microbatches, sub-microbatch sizes,
// memory, recomputation and links, each planned with the same budget on the
// partition of its own that `input` gives it and, if `given` is not null and
// suits it, on that too, of which the faster plan counts. Returns the best
// change of each kind that fits the memory, at most `most`, best first. Leaves
// out changes that gain less than a thousandth of the step.
absl::StatusOr<std::vector<Suggestion>> SuggestForJob(
    const WhatIfInput& input, const std::vector<formats::JobOverride>& base,
    const WhatIfOutcome& now, const Partition* given, size_t most,
    int32_t threads, const StudyContext& context);

// Tries changes of a plan that keep its programs: faster links, a hidden
// epilogue, a module or a rank that computes a tenth less.
absl::StatusOr<std::vector<Suggestion>> SuggestForPlan(
    const ExecutionPlan& plan, size_t most);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_WHATIF_SUGGESTIONS_H_
