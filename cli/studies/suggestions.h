// Changes that would make a step shorter, each tried: planned and emulated, or
// emulated alone. What `pipeloom explain` proposes.
#ifndef PIPELOOM_CLI_STUDIES_SUGGESTIONS_H_
#define PIPELOOM_CLI_STUDIES_SUGGESTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/studies/whatif_run.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::cli {

struct Suggestion {
  std::string label{};
  Duration step_time{};  // With the change.
  Duration gain{};       // Over the step as it is.
  // The change, for `whatif --set`; empty for changes of a bare plan.
  WhatIfCase change{};
};

// Of a job: other layouts, microbatches, sub-microbatch sizes, memory,
// recomputation and links, planned anew with the same budget. The best of each
// kind that fits the memory, at most `most` of them, best first; those that
// gain less than a thousandth of the step are left out.
absl::StatusOr<std::vector<Suggestion>> SuggestForJob(
    const WhatIfInput& input, const std::vector<formats::JobOverride>& base,
    const WhatIfOutcome& now, size_t most, int32_t threads,
    const Context& context);

// Of a plan as it is, with the same programs: faster links, a hidden epilogue,
// a module or a rank that computes a tenth less.
absl::StatusOr<std::vector<Suggestion>> SuggestForPlan(
    const ExecutionPlan& plan, size_t most);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_SUGGESTIONS_H_
