// The ranks of `pipeloom run`: threads of this process, or processes that
// mpirun has started, one of which is this one.
#ifndef PIPELOOM_CLI_RUN_RUN_RANKS_H_
#define PIPELOOM_CLI_RUN_RUN_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "ir/ids.h"
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
  // Besides plans: the leader's bytes for all; everyone's for the leader, by
  // rank. All ranks call these in one order.
  virtual absl::StatusOr<std::string> Broadcast(std::string bytes) = 0;
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      std::string bytes) = 0;
  // This process's only rank; none: all ranks are threads of it.
  virtual RankId only_rank() const = 0;
  // Among the ranks of its host.
  virtual int32_t host_rank() const = 0;
  // Ends the run, well or with an error, which then all ranks hear of. Of
  // processes, a failed one ends here, after it has said why.
  virtual absl::Status End(const absl::Status& status,
                           const Context& context) = 0;
};

std::unique_ptr<RunRanks> MakeThreadRanks(const runtime::RunOptions& options,
                                          runtime::DeviceFactory make_device);

// Ends the run with what `work` says. Lack of memory in it is an error like any
// other, so that other processes hear of it.
absl::Status RunToEnd(RunRanks& ranks, const Context& context,
                      const std::function<absl::Status()>& work);

// How processes exchange tensors. MPI starts them in any case.
enum class ProcessTransport { kMpi, kNccl };

// Unimplemented: built without MPI.
// `keep_time`: over MPI, transfers take the plan's time; else what they take.
absl::StatusOr<std::unique_ptr<RunRanks>> StartProcessRanks(
    ProcessTransport transport, const runtime::RunOptions& options,
    runtime::DeviceFactory make_device, bool keep_time);

// By the name of a transport: inproc, mpi or nccl.
absl::StatusOr<std::unique_ptr<RunRanks>> StartRanks(
    const std::string& transport, const runtime::RunOptions& options,
    runtime::DeviceFactory make_device, bool keep_time);
// "threads, inproc transport"
std::string RanksInWords(const std::string& transport);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_RANKS_H_
