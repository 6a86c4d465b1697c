// The ranks of `pipeloom run`: threads of this process, or processes that
// mpirun has started, one of which is this process.
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

  // Returns whether this process plans and prints; exactly one process does.
  virtual bool leads() const = 0;
  // Returns the feed from which this process gets its plans: the leader's feed,
  // shared with all processes.
  virtual runtime::PlanFeed Share(runtime::PlanFeed leaders) = 0;
  virtual absl::StatusOr<StepTrace> RunStep(runtime::SharedPlan plan) = 0;
  // Exchange data other than plans: return the leader's bytes on all processes,
  // or everyone's bytes, indexed by rank, on the leader. REQUIRES: all
  // processes call these in the same order.
  virtual absl::StatusOr<std::string> Broadcast(std::string bytes) = 0;
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      std::string bytes) = 0;
  // Returns this process's only rank, or none if all ranks are threads of it.
  virtual RankId only_rank() const = 0;
  // Returns this rank's number among the ranks of its host.
  virtual int32_t host_rank() const = 0;
  // Ends the run, successfully or with an error, which all ranks then hear of.
  // A failed process of several prints the error and exits inside this call.
  virtual absl::Status End(const absl::Status& status,
                           const Context& context) = 0;
};

std::unique_ptr<RunRanks> MakeThreadRanks(const runtime::RunOptions& options,
                                          runtime::DeviceFactory make_device);

// Runs `work` and ends the run with its status. Lack of memory in it is an
// error like any other, so that other processes hear of it.
absl::Status RunToEnd(RunRanks& ranks, const Context& context,
                      const std::function<absl::Status()>& work);

// The transport by which processes exchange tensors. MPI starts them in any
// case.
enum class ProcessTransport { kMpi, kNccl };

// Starts MPI and connects the processes. With `keep_time`, transfers over MPI
// take the time that the plan says. Unimplemented: built without MPI.
absl::StatusOr<std::unique_ptr<RunRanks>> StartProcessRanks(
    ProcessTransport transport, const runtime::RunOptions& options,
    runtime::DeviceFactory make_device, bool keep_time);

// Starts ranks by the name of their transport: "inproc", "mpi" or "nccl".
absl::StatusOr<std::unique_ptr<RunRanks>> StartRanks(
    const std::string& transport, const runtime::RunOptions& options,
    runtime::DeviceFactory make_device, bool keep_time);
// Returns for example "threads, inproc transport".
std::string RanksInWords(const std::string& transport);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_RANKS_H_
