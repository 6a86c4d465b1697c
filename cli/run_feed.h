// The plans that `pipeloom run` executes: one from a file, or those of a job's
// next steps, each planned while the step before it runs.
#ifndef PIPELOOM_CLI_RUN_FEED_H_
#define PIPELOOM_CLI_RUN_FEED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/plan_source.h"
#include "runtime/run_steps.h"

namespace pipeloom::cli {

// `steps` plans, of which each is given `repeat` times in a row. The first is
// made here, so that mistakes in the input show before anything runs. A
// UsageError when a plan file is to give several steps.
absl::StatusOr<runtime::PlanFeed> MakeRunFeed(
    const PlanSource& source, const std::vector<std::string>& args,
    int64_t steps, int64_t repeat, const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_FEED_H_
