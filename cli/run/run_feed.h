// The plans that `pipeloom run` executes: one from a file, or those of a job's
// steps, each planned while the step before it runs, by this process or by a
// service.
#ifndef PIPELOOM_CLI_RUN_RUN_FEED_H_
#define PIPELOOM_CLI_RUN_RUN_FEED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/plan_source.h"
#include "cli/run/plan_follower.h"
#include "runtime/run_steps.h"

namespace pipeloom::cli {

// Counts of a run's plans by their source.
struct FeedCounts {
  int64_t planned = 0;  // Made by the service.
  int64_t own = 0;      // Made here without a search, as none came in time.
};

// Makes a feed of `steps` plans, each given `repeat` times in a row. Makes the
// first plan at once, so that errors in the input are reported before anything
// runs. A UsageError: a plan file is to give several steps.
absl::StatusOr<runtime::PlanFeed> MakeRunFeed(
    const PlanSource& source, const std::vector<std::string>& args,
    int64_t steps, int64_t repeat, const Context& context);

// Makes such a feed for a job whose steps a service plans, for replica 0, with
// a partition that is made here. Only rank 0 asks the service and tells the
// other ranks, so that all run the same plan. If no plan comes in time, or one
// that does not belong to the step, the plan is the strategy's own, which takes
// no search. REQUIRES: `counts` outlives the feed.
absl::StatusOr<runtime::PlanFeed> MakeServiceFeed(
    const PlanSource& source, const FollowOptions& service,
    const std::vector<std::string>& args, int64_t steps, int64_t repeat,
    const Context& context, FeedCounts* counts);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_FEED_H_
