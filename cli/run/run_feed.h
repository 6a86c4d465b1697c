// The plans that `pipeloom run` executes: one from a file, or those of a job's
// next steps, each planned while the step before it runs, here or by a service.
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

// Where the plans of a run came from.
struct FeedCounts {
  int64_t planned = 0;  // The service.
  int64_t own = 0;      // Made here, without a search, since none came in time.
};

// `steps` plans, of which each is given `repeat` times in a row. The first is
// made here, so that mistakes in the input show before anything runs. A
// UsageError when a plan file is to give several steps.
absl::StatusOr<runtime::PlanFeed> MakeRunFeed(
    const PlanSource& source, const std::vector<std::string>& args,
    int64_t steps, int64_t repeat, const Context& context);

// The same of a job, planned by a service: of replica 0, by the partition that
// is made here. Rank 0 alone asks and tells the others, so that all ranks run
// one plan; where none comes in time, or one that is not of the step, the plan
// is the strategy's own, which takes no search. `counts` outlives the feed.
absl::StatusOr<runtime::PlanFeed> MakeServiceFeed(
    const PlanSource& source, const FollowOptions& service,
    const std::vector<std::string>& args, int64_t steps, int64_t repeat,
    const Context& context, FeedCounts* counts);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_FEED_H_
