// The ranks of `pipeloom run`: threads of this process, or processes that
// mpirun has started, one of which is this one.
#ifndef PIPELOOM_CLI_RUN_RANKS_H_
#define PIPELOOM_CLI_RUN_RANKS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "runtime/device.h"
#include "runtime/launch.h"
#include "runtime/run_steps.h"

namespace pipeloom::cli {

class RunRanks {
 public:
  virtual ~RunRanks() = default;

  // Whether this process plans and prints: one of them does.
  virtual bool leads() const = 0;
  // Where all ranks get their plans, from the leader's feed.
  virtual runtime::PlanFeed Share(runtime::PlanFeed leaders) = 0;
  virtual absl::StatusOr<StepTrace> RunStep(runtime::SharedPlan plan) = 0;
  // Ends the run, well or with an error, which then all ranks hear of. Of
  // processes, a failed one ends here, after it has said why.
  virtual absl::Status End(const absl::Status& status,
                           const Context& context) = 0;
};

std::unique_ptr<RunRanks> MakeThreadRanks(const runtime::RunOptions& options,
                                          runtime::DeviceFactory make_device);

#if PIPELOOM_WITH_MPI
// `keep_time`: transfers take the plan's time; else what they take.
absl::StatusOr<std::unique_ptr<RunRanks>> StartMpiRanks(
    const runtime::RunOptions& options, runtime::DeviceFactory make_device,
    bool keep_time);
#endif

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RANKS_H_
